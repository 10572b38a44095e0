"""Faults between two real sites that meet in an object store: the run goes on, nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from object_server import ObjectServer, object_server
from penstock.drill.catalog import FAULTS
from penstock.drill.faults import DrillFault, Injection, ScratchScale
from penstock.drill.needs import missing
from penstock.drill.session import DrillSession
from penstock.drill.sites import STEADY
from penstock.launch.supervisor.preload import PreloadClient
from penstock.run.load import load

BETWEEN_SITES = [name for name, fault in FAULTS.items() if "sites" in fault.needs]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.env.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def session(
    tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient, server: ObjectServer
) -> DrillSession:
    folder = tmp_path_factory.mktemp("sites")
    made = DrillSession(load(run_file(folder, tiny)), folder / "drills", slack_s=5.0)
    made.open()
    return made


def run_file(folder: Path, dataset: str) -> Path:
    path = folder / "run.toml"
    path.write_text(
        f'name = "small"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{dataset}"\nsequence = 16\n'
        '[train]\nprecision = "fp32"\nsteps = 60\nbatch_tokens = 128\n[cluster]\naccelerators = 2\n'
        '[guard]\ndurable = "s3://data/runs"\n'
    )
    return path


def test_all_five_are_in_the_catalogue() -> None:
    assert BETWEEN_SITES == [
        "cut_site",
        "slow_site",
        "bucket_away",
        "kill_between_put_and_commit",
        "replayed_round",
    ]


def test_without_a_store_they_are_left_out_with_a_reason(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    run, scale = load(run_file(tmp_path, tiny)), ScratchScale()
    for name in BETWEEN_SITES:
        assert "needs sites.bucket or guard.durable" in missing(FAULTS[name], run, 2, scale)
        assert "at least 24 steps" in missing(FAULTS[name], run, 2, ScratchScale(23))
    wide = load(run_file(tmp_path, tiny), ["layout.replicate=2"])
    assert "whose layout is chosen" in missing(FAULTS["cut_site"], wide, 2, scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", BETWEEN_SITES)
def test_a_fault_between_sites_leaves_no_trace(
    name: str, session: DrillSession, server: ObjectServer
) -> None:
    verdict = session.drill(FAULTS[name])
    assert verdict.why == []
    assert verdict.skipped == ""
    assert verdict.blows
    assert verdict.detected_by in FAULTS[name].reported_by
    assert verdict.weights == ("equal" if FAULTS[name].outcome == "same" else verdict.weights)
    assert not (session.root / name).exists()
    assert [one for one in server.objects if "/drills/" in one] == []


@pytest.mark.slow
def test_a_fault_between_sites_that_did_not_fall_is_not_survived(session: DrillSession) -> None:
    late = DrillFault(
        "late",
        "a step beyond the end",
        ("fault",),
        (Injection("kill", "site_published", 999),),
        needs=("sites",),
        fields=STEADY,
    )
    verdict = session.drill(late)
    assert not verdict.passed
    assert "did not happen" in "; ".join(verdict.why)
