"""Real faults on real runs, a few of each kind; `make drill` makes all of them."""

from pathlib import Path

import pytest

from penstock.drill.campaign import random_fault
from penstock.drill.catalog import FAULTS
from penstock.drill.faults import DrillFault, Injection
from penstock.drill.session import DrillSession
from penstock.launch.supervisor.preload import PreloadClient
from penstock.run.load import load

SHORT = (
    "kill_collective",
    "kill_publish",
    "kill_supervisor",
    "hang_forward",
    "flip_weight",
    "checkpoint_flip",
    "disk_full",
)
SEEDS = (4, 9)


def opened(folder: Path, dataset: str, *overrides: str) -> DrillSession:
    path = folder / "run.toml"
    path.write_text(
        f'name = "small"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{dataset}"\nsequence = 16\n'
        '[train]\nprecision = "fp32"\nsteps = 60\nbatch_tokens = 128\n[cluster]\naccelerators = 2\n'
    )
    # Clocks are held to 5 % by `make drill`, on a quiet machine: other tests run beside this one.
    made = DrillSession(load(path, overrides), folder / "drills", slack_s=5.0)
    made.open()
    return made


@pytest.fixture(scope="module")
def session(
    tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient
) -> DrillSession:
    return opened(tmp_path_factory.mktemp("drill"), tiny)


def passes(session: DrillSession, fault: DrillFault) -> None:
    verdict = session.drill(fault)
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    assert verdict.why == []
    assert not (session.root / fault.name).exists()  # what is judged well is cleared away


@pytest.mark.parametrize("name", SHORT)
def test_a_fault_leaves_no_trace(name: str, session: DrillSession) -> None:
    passes(session, FAULTS[name])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_leave_no_trace(seed: int, session: DrillSession) -> None:
    passes(session, random_fault(seed, session.scale, session.ranks))


@pytest.mark.usefixtures("warm")
def test_the_other_replica_goes_on(tmp_path: Path, tiny: str) -> None:
    session = opened(tmp_path, tiny, "guard.mode=live")
    verdict = session.drill(FAULTS["kill_collective"])
    assert verdict.why == []
    assert verdict.detected_by == "lost"
    assert verdict.steps_redone <= 1  # the one it fell into, if that had been told already


def test_a_fault_that_did_not_fall_is_not_survived(session: DrillSession) -> None:
    """Nobody may say that all is well of a fault that never came."""
    late = DrillFault(
        "late", "a step beyond the end", ("fault",), (Injection("kill", "fetch", 999),)
    )
    verdict = session.drill(late)
    assert not verdict.passed
    assert "did not happen" in "; ".join(verdict.why)
    assert (session.root / "late" / "journal").is_dir()  # kept, to be looked at
