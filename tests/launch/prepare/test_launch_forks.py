"""What a checkpoint does not hold: another optimizer's moments, and what other code wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest

from old_formats import as_format
from penstock.errors import PenstockError, RunFailed
from penstock.guard.checkpoints import newest_in_memory
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import published_checkpoints
from penstock.launch.start import start
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.generate import generate_text

MakeFile = Callable[..., Path]
SHORT = {"train.steps": 2, "evaluate.every": "never", "cluster.accelerators": 1}
OWN = """
from torch import nn
from beside import inner

def build():
    return nn.Sequential(nn.Embedding(320, 8), *inner(), nn.Linear(8, 320))
"""
BESIDE = """
from torch import nn

def inner():
    return [INNER]
"""


def told(folder: RunFolder, kind: str) -> list[dict[str, object]]:
    events = [e for f in journal_files(folder.journal, "events") for e in read_events(f.path)]
    return [event.payload for event in events if event.kind == kind]


def test_a_fork_to_another_optimizer_keeps_the_weights_alone(run_file: MakeFile) -> None:
    path = run_file(**SHORT)
    first = start(load(path))
    longer = load(path, ["train.steps=3", "train.optimizer=muon"])
    fork = start(longer, fork="muon")
    assert told(first, "moments_dropped") == []
    assert told(fork, "moments_dropped") == [{"saved": "adamw", "now": "muon"}]
    saved = published_checkpoints(fork.checkpoints)[0]
    assert (saved.step, saved.scalars["updates"]) == (3, 1)

    as_format(published_checkpoints(first.checkpoints)[0].path, 1)
    before = len(journal_files(first.journal, "events"))
    for options in ({}, {"fork": "other"}):
        with pytest.raises(PenstockError, match=r"a checkpoint in format 1.*reads format 3"):
            start(load(path, ["train.steps=4"]), **options)
    assert len(journal_files(first.journal, "events")) == before  # no process was started
    assert not (fork.path.parent / "other").exists()


def test_an_own_module_that_has_changed_is_told_and_not_tried_again(
    run_file: MakeFile, tmp_path: Path
) -> None:
    gone = {f"model.{name}": None for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    own = {"model.tied": None, "model.module": f"{tmp_path}/own.py:build"}
    code, beside = tmp_path / "own.py", tmp_path / "beside.py"
    code.write_text(OWN)
    beside.write_text(BESIDE.replace("INNER", ""))
    path = run_file(**SHORT | gone | own | {"train.learning_rate": 0.01})
    folder = start(load(path))
    code.write_text(OWN + "# edited\n")
    with pytest.raises(PenstockError, match=r"model\.module = .*own\.py has changed since run"):
        start(load(path, ["train.steps=3"]))
    assert len(told(folder, "start")) == 1

    # The same code under another name goes on.
    code.write_text(OWN)
    moved = code.rename(tmp_path / "moved.py")
    with pytest.raises(
        PenstockError, match=r"own\.py is gone, .* or write its new name in model\."
    ):
        start(load(path, ["train.steps=3"]))
    renamed = [f"model.module={moved}:build"]
    start(load(path, [*renamed, "train.steps=3"]))
    assert [one["step"] for one in told(folder, "resumed")] == [2]
    moved.write_text(OWN + "# edited\n")
    code.write_text(OWN)
    with pytest.raises(PenstockError, match=r"model\.module: .*moved\.py:build. → .*own\.py:other"):
        start(load(path, [f"model.module={code}:other", "train.steps=4"]))
    assert len(told(folder, "start")) == 2

    # What the file imports is not looked at before a launch: the ranks tell.
    beside.write_text(BESIDE.replace("INNER", "nn.Linear(8, 8)"))
    with pytest.raises(RunFailed, match=r"another model.*1\.weight is 320 × 8 there and 8 × 8"):
        start(load(path, ["train.steps=4"]))
    assert len(told(folder, "start")) == 3


CRASH = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.calls = nn.Embedding(320, 8), nn.Linear(8, 320), 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls > 60 and torch.distributed.is_initialized():
            raise ValueError("a bug of the user")
        return self.head(self.embed(tokens))

def build():
    return Net()
"""


def test_what_a_crash_left_in_memory_can_be_forked_and_generated_from(
    run_file: MakeFile, tmp_path: Path
) -> None:
    gone = {f"model.{name}": None for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    own = {"model.tied": None, "model.module": f"{tmp_path}/crash.py:build"}
    often = {"train.steps": 100, "guard.fast": "1 steps", "guard.checkpoint": "1000 steps"}
    code = tmp_path / "crash.py"
    code.write_text(CRASH)
    path = run_file(**SHORT | gone | own | often | {"train.learning_rate": 0.01})
    with pytest.raises(RunFailed, match="a bug of the user"):  # exit code 1: it had begun well
        start(load(path))
    folder = RunFolder(load(path).folder)
    assert published_checkpoints(folder.checkpoints) == []
    slot = newest_in_memory(folder, load(path))
    assert slot is not None

    generate_text(folder, "ab", 2, 0.0, 0)
    code.write_text(CRASH.replace("> 60", "> 1000"))
    longer = load(path, [f"train.steps={slot.step + 1}"])
    fork = start(longer, fork="mended")
    assert fork.read_plan()["forked_from"]["step"] == slot.step
    assert [one["step"] for one in told(fork, "resumed")] == [slot.step]
    newest, first = published_checkpoints(fork.checkpoints)
    assert (newest.step, first.step) == (slot.step + 1, slot.step)
    assert first.find_damage() == []


@pytest.mark.parametrize("name", ["scalars.json", MANIFEST])
def test_a_damaged_description_is_passed_over(name: str, run_file: MakeFile) -> None:
    path = run_file(**SHORT | {"guard.checkpoint": "1 steps"})
    folder = start(load(path))
    damaged = published_checkpoints(folder.checkpoints)[0].path / name
    damaged.write_bytes(b"\xff" + damaged.read_bytes())
    start(load(path, ["train.steps=3"]))
    (resumed,) = told(folder, "resumed")
    assert resumed["step"] == 1
    assert published_checkpoints(folder.checkpoints)[0].step == 3
