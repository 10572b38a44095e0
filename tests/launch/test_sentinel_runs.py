"""Sentinels in whole runs of real processes, with faults that are really there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import RunFailed
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.ledger.journal.read import read_curve, read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.report.screen import summary

STEPS = 40
FIELDS = {
    "train.steps": STEPS,
    "guard.checkpoint": "10 steps",
    "guard.fast": "never",  # it is compared before every save: comparisons at known steps
    "evaluate.every": "20 steps",
    "cluster.accelerators": 2,
}
MakeFile = Callable[..., Path]


def go(file: Path, *traps: Failpoint) -> dict[str, Any]:
    """The report of a run that these traps were set in."""
    run = load(file)
    for trap in traps:
        arm(RunFolder(run.folder).traps, trap)
    return summary(start(run))


def events(report: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    files = journal_files(RunFolder(Path(report["folder"])).journal, "events")
    found = sorted((e for f in files for e in read_events(f.path)), key=lambda e: e.t)
    return [{"kind": e.kind, **e.payload} for e in found if e.kind in kinds]


def steps_in_curve(report: dict[str, Any]) -> list[int]:
    (file,) = journal_files(RunFolder(Path(report["folder"])).journal, "curve")
    return read_curve(file.path)["step"].tolist()


@pytest.fixture(scope="module")
def calm(
    tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient
) -> dict[str, Any]:
    """Two replicas that nothing happens to."""
    folder = tmp_path_factory.mktemp("calm")
    path = folder / "run.toml"
    path.write_text(
        f'name = "calm"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        f'[train]\nprecision = "fp32"\nsteps = {STEPS}\nbatch_tokens = 128\n'
        '[evaluate]\nevery = "20 steps"\n'
        '[guard]\ncheckpoint = "10 steps"\ntimeout = "60 s"\nreplay = "9 steps"\n'
        "[layout]\nreplicate = 2\n[cluster]\naccelerators = 2\n"
    )
    return go(path)


def test_a_batch_that_is_not_a_number_is_skipped_and_kept(
    run_file: MakeFile, calm: dict[str, Any]
) -> None:
    report = go(run_file(**FIELDS), Failpoint("n", "nan", "fetch", rank=1, step=25))
    assert report["status"] == "done"
    assert report["faults"] == 0
    (skipped,) = events(report, "batch_skipped")
    assert (skipped["step"], skipped["loss"]) == (25, "nan")
    assert steps_in_curve(report) == [s for s in range(1, STEPS + 1) if s != 25]
    assert report["weights_hash"] != calm["weights_hash"]  # one batch less
    where = Path(report["folder"]) / "bad" / "step-00000025"
    slices = [np.load(where / f"rank-0000{r}.npz") for r in range(2)]
    positions = np.concatenate([s["positions"] for s in slices])
    assert positions.tolist() == list(range(24 * 8, 25 * 8))
    assert all(s["tokens"].shape == (4, 17) for s in slices)
    assert "return x +" in (where / "rank-00001.txt").read_text()
    assert json.loads((where / "about.json").read_text())["loss"] == "nan"


def test_going_back_for_a_spike_ends_like_never_having_used_the_batch(run_file: MakeFile) -> None:
    trap = Failpoint("s", "spike", "fetch", rank=1, step=37)
    skip = go(run_file("skip", **FIELDS | {"guard.on_spike": "skip"}), trap)
    back = go(run_file("back", **FIELDS), trap)
    assert skip["status"] == back["status"] == "done"
    assert [e["step"] for e in events(skip, "batch_skipped")] == [37]
    assert events(skip, "went_back", "spike") == []
    spiked, *went, skipped = events(back, "spike", "went_back", "batch_skipped")
    assert (spiked["kind"], spiked["step"]) == ("spike", 37)
    assert [e["kind"] for e in went] == ["went_back"] * 2  # both ranks
    assert 0 < went[0]["step"] < 37
    assert (skipped["step"], skipped["why"]) == (37, "found bad before")
    assert back["weights_hash"] == skip["weights_hash"]
    assert back["ledger"]["redo"] > 0
    once = [s for s in range(1, STEPS + 1) if s != 37]
    assert steps_in_curve(skip) == once
    assert steps_in_curve(back) == [*range(1, 37), *range(went[0]["step"] + 1, 37), *range(38, 41)]


def test_stop_means_stop_also_for_a_spike(run_file: MakeFile) -> None:
    file = run_file(**FIELDS | {"guard.on_spike": "stop", "cluster.accelerators": 1})
    with pytest.raises(RunFailed, match=r"step 30: loss .* is usual"):
        go(file, Failpoint("s", "spike", "fetch", step=30))
    assert (load(file).folder / "bad" / "step-00000030" / "about.json").is_file()


@pytest.mark.parametrize(
    ("rank", "mode"),
    [(1, "restart"), pytest.param(0, "restart", marks=pytest.mark.slow), (1, "live")],
)
def test_a_flipped_bit_in_one_replica_is_found_named_and_undone(
    rank: int, mode: str, run_file: MakeFile, calm: dict[str, Any]
) -> None:
    """At the next comparison, which also comes before every save."""
    fields = {"guard.compare": "4 steps", "guard.mode": mode, "layout.replicate": 2}
    file = run_file(**FIELDS | fields)
    report = go(file, Failpoint("f", "flip", "updated", rank=rank, step=22))
    assert report["status"] == "done"
    assert report["faults"] == 0
    differ, fault = events(report, "replicas_differ", "replica_at_fault")
    assert differ["step"] == fault["step"] == 24
    assert 0 < differ["back_to"] <= 20
    assert differ["tensors"]
    assert (fault["replicas"], fault["certain"]) == ([rank], True)
    assert report["weights_hash"] == calm["weights_hash"]
    assert report["val_losses"] == calm["val_losses"]


def test_a_weight_that_makes_every_batch_look_bad_is_not_held_against_one(
    run_file: MakeFile, calm: dict[str, Any]
) -> None:
    """The highest bit of the exponent: soon no batch gives a number."""
    file = run_file(**FIELDS | {"layout.replicate": 2})
    report = go(file, Failpoint("f", "flip", "updated", rank=1, step=25, ms=30))
    skipped, differ, fault = events(report, "batch_skipped", "replicas_differ", "replica_at_fault")
    assert 26 <= skipped["step"] == differ["step"] < 30
    assert fault["replicas"] == [1]
    assert report["weights_hash"] == calm["weights_hash"]


@pytest.mark.slow
def test_without_replicas_it_is_found_by_the_third_bad_step(
    run_file: MakeFile,
) -> None:
    file = run_file(**FIELDS | {"layout.replicate": 1, "layout.shard": 2})
    quiet = go(run_file("quiet", **FIELDS | {"layout.replicate": 1, "layout.shard": 2}))
    report = go(file, Failpoint("f", "flip", "updated", rank=0, step=25, ms=30))
    first, second, third = events(report, "batch_skipped", "spike")
    assert first["step"] + 2 == second["step"] + 1 == third["step"] <= 30
    assert third["kind"] == "spike"
    assert report["weights_hash"] == quiet["weights_hash"]


def test_a_wrong_state_is_never_saved(run_file: MakeFile, calm: dict[str, Any]) -> None:
    """No comparison is due, but a save is, in the host's memory."""
    fields = {"guard.compare": "never", "guard.fast": "3 steps", "layout.replicate": 2}
    file = run_file(**FIELDS | fields)
    report = go(file, Failpoint("f", "flip", "updated", rank=0, step=25))
    (differ,) = events(report, "replicas_differ")
    # A fast save is left out while the one before is still on its way: then it is one later.
    assert 25 <= differ["step"] <= 30
    assert 20 <= differ["back_to"] < 25
    assert report["weights_hash"] == calm["weights_hash"]


def test_a_replay_finds_a_gradient_that_was_computed_wrongly(
    run_file: MakeFile, calm: dict[str, Any]
) -> None:
    """And leaves no trace: the run of the fixture replays too, and has other weights by nothing."""
    fields = FIELDS | {"guard.replay": "5 steps", "layout.replicate": 2}
    report = go(run_file(**fields), Failpoint("g", "gradient", "updated", rank=1, step=15))
    (found,) = events(report, "replay_differs")
    assert (found["step"], found["pairs"], found["replicas"]) == (15, [[1, 0]], [1])
    assert events(calm, "replay_differs") == []
    assert report["weights_hash"] == calm["weights_hash"]
