"""Real faults on real runs, a few of each kind; `make drill` makes all of them."""

import pytest

from penstock.drill.catalog import FAULTS
from penstock.drill.session import Session
from penstock.run.load import load

SHORT = (
    "kill_collective",
    "kill_publish",
    "kill_supervisor",
    "hang_forward",
    "checkpoint_flip",
    "flip_weight",
    "disk_full",
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Session:
    folder = tmp_path_factory.mktemp("drill")
    path = folder / "run.toml"
    path.write_text(
        f'name = "small"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        "[train]\nsteps = 60\nbatch_tokens = 128\n[cluster]\naccelerators = 2\n"
    )
    made = Session(load(path), folder / "drills", slack_s=0.3)  # beside other tests
    made.open()
    return made


@pytest.mark.parametrize("name", SHORT)
def test_a_fault_leaves_no_trace(name: str, session: Session) -> None:
    verdict = session.drill(FAULTS[name])
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    assert verdict.why == []
