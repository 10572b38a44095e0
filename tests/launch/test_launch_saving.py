"""Where a run's state is kept, in real runs: memory, disk and a second place, each alone."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, RunFailed
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.guard.format.published import published_checkpoints
from penstock.guard.tiers.slots import sealed_slots
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.resume import decide_resume
from penstock.launch.start import start
from penstock.ledger.journal.read import next_attempt, read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.report.screen import summary

MakeFile = Callable[..., Path]
FIELDS = {
    "train.steps": 12,
    "cluster.accelerators": 1,
    "evaluate.every": "never",
    "guard.fast": "2 steps",
    "guard.checkpoint": "5 steps",
}


def told(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    files = sorted(journal_files(folder.journal, "events"), key=lambda file: file.attempt)
    events = [event for file in files for event in read_events(file.path)]
    return [event.payload for event in events if event.kind == kind]


class Beside(Listener):
    """Does something in a thread of its own once the run is launched."""

    def __init__(self, act: Callable[[RunFolder], None]) -> None:
        self.act = act

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        threading.Thread(target=self.act, args=(folder,), daemon=True).start()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """Filled by the first test that needs it: the weights of the run without a fault."""
    return {}


def expected(run_file: MakeFile, undisturbed: dict[str, str]) -> str:
    if not undisturbed:
        folder = start(load(run_file("plain", **FIELDS)))
        undisturbed["hash"] = summary(folder)["weights_hash"]
        staged = {one["step"] for one in told(folder, "checkpoint") if "step" in one}
        assert staged <= {2, 4, 5, 6, 8, 10, 12}
        assert staged > {5, 10, 12}  # a fast one is left out while the last is not safe
        assert [one["step"] for one in told(folder, "saved")] == [5, 10, 12]
        assert not folder.scratch.exists()  # what it held is on disk
    return undisturbed["hash"]


@pytest.mark.parametrize("phase", ["seal", "publish"])
def test_killed_while_saving_it_goes_on_from_memory(
    run_file: MakeFile, undisturbed: dict[str, str], phase: str
) -> None:
    path = run_file(phase, **FIELDS)
    folder = RunFolder(load(path).folder)
    arm(folder.traps, Failpoint("t", "kill", phase, step=10))
    start(load(path))
    assert (folder.traps / "t.fired").exists()
    (found,) = told(folder, "resumed")
    assert found["tier"] == "memory"
    assert (found["step"] >= 10) == (phase == "publish")  # whole there before it is on disk
    assert summary(folder)["weights_hash"] == expected(run_file, undisturbed)


def test_a_disk_that_fails_ends_nothing_and_memory_holds_the_end(
    run_file: MakeFile, undisturbed: dict[str, str]
) -> None:
    path = run_file("full", **FIELDS)
    aside = RunFolder(load(path).folder).path / "aside"

    def break_disk(folder: RunFolder) -> None:
        while not published_checkpoints(folder.checkpoints):
            time.sleep(0.001)
        folder.checkpoints.rename(aside)
        folder.checkpoints.write_text("no folder")

    with pytest.raises(RunFailed, match=r"step 12 could not be saved.*still in memory"):
        start(load(path), listener=Beside(break_disk))
    folder = RunFolder(load(path).folder)
    assert {one["step"] for one in told(folder, "save_failed")} >= {12}
    assert sealed_slots(next(folder.scratch.glob("fast-*")))[0].step == 12
    how = decide_resume(folder, load(path))  # the identity of the run is in its folder too
    assert (how.step, how.tier) == (12, "memory")
    assert [words for words in how.passed_over if "Not a directory" in words]
    memory = folder.scratch.rename(folder.scratch.with_name(f"{folder.scratch.name}-aside"))
    with pytest.raises(RunFailed, match="Not a directory"):  # before a rank is started
        decide_resume(folder, load(path))
    memory.rename(folder.scratch)
    folder.checkpoints.unlink()
    aside.rename(folder.checkpoints)
    how = decide_resume(folder, load(path))
    start(load(path))
    assert [(r["step"], r["tier"]) for r in told(folder, "resumed")] == [(12, "memory")]
    assert (how.step, how.tier) == (12, "memory")  # as it was announced
    assert published_checkpoints(folder.checkpoints)[0].step == 12
    assert summary(folder)["weights_hash"] == expected(run_file, undisturbed)


def test_a_second_place_has_what_the_run_folder_lost(run_file: MakeFile, tmp_path: Path) -> None:
    far = tmp_path / "far"
    path = run_file("two", **FIELDS | {"guard.durable": str(far), "guard.fast": "never"})
    folder = start(load(path))
    assert [one["step"] for one in told(folder, "checkpoint") if "step" in one] == [5, 10, 12]
    (tier,) = told(folder, "fast_tier")
    assert tier["slots"] == 1
    (second,) = far.iterdir()
    assert [one.step for one in published_checkpoints(second)] == [12, 10, 5]
    assert all(one.find_damage() == [] for one in published_checkpoints(second))
    for one in published_checkpoints(folder.checkpoints):
        shutil.rmtree(one.path)
    how = decide_resume(folder, load(path, ["train.steps=14"]))
    start(load(path, ["train.steps=14"]))
    assert [(r["step"], r["tier"]) for r in told(folder, "resumed")] == [(12, "disk")]
    assert (how.step, how.tier) == (12, "disk")
    assert (
        published_checkpoints(folder.checkpoints)[0].step
        == published_checkpoints(second)[0].step
        == 14
    )
    with pytest.raises(PenstockError, match=r"still holds checkpoints of the old run \(step 14\)"):
        start(load(path), fresh=True)  # it would go on from there
    shutil.rmtree(folder.checkpoints)
    shutil.rmtree(second)
    attempts = next_attempt(folder.journal)
    with pytest.raises(RunFailed, match="step 14 was saved"):
        start(load(path, ["train.steps=16"]))
    assert next_attempt(folder.journal) == attempts  # no rank was started for that
    assert decide_resume(folder, load(path, ["train.steps=14"])).finished
