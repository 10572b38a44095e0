"""Ranks that hang or hold the others up: seen by their pulses, named, and got over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import RunFailed
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.read import JournalLine, read_events
from penstock.policy import hang
from penstock.policy.straggler import StragglerChange
from penstock.run.folder import RunFolder
from penstock.run.load import load
from whole_runs import OWN_FIELDS, go

MakeFile = Callable[..., Path]
FIELDS = {
    "train.steps": 30,
    "guard.checkpoint": "10 steps",
    "guard.timeout": "120 s",
    "evaluate.every": "never",
    "cluster.accelerators": 2,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "FLOOR_S", 3.0)


def supervised(folder: RunFolder, kind: str) -> list[JournalLine]:
    return [e for e in read_events(folder.journal / "supervisor.events") if e.kind == kind]


@pytest.mark.usefixtures("impatient")
def test_stopped_ranks_are_named_with_every_stack_and_the_run_goes_on(run_file: MakeFile) -> None:
    """In a step, and where a rank is given long: while it warms up, and at its end."""
    calm = go(run_file("calm", **FIELDS))
    path = run_file("stopped", **FIELDS)
    folder = RunFolder(load(path).folder)
    places = [(1, "warm_up", 0), (1, "forward", 14), (0, "save", 30)]
    for rank, phase, step in places:
        arm(folder.traps, Failpoint(phase, "stop", phase, rank=rank, step=step))
    report = go(path)
    assert report["status"] == "done"
    assert report["weights_hash"] == calm["weights_hash"]
    hangs = [e.payload for e in supervised(folder, "hang")]
    assert [(h["rank"], h["phase"], h["step"]) for h in hangs] == places
    assert all("stopped by a signal" in str(h["why"]) for h in hangs)
    logs = folder.logs / "attempt-1"
    assert "most recent call first" in (logs / "rank-0.stack").read_text()
    assert (logs / "rank-1.stack").read_text() == "no answer\n"  # it cannot
    faults = supervised(folder, "fault")
    assert [f.payload["rank"] for f in faults] == [1, 1, 0]
    for fault in faults:
        assert str(fault.payload["reason"]).startswith("hang: no sign for")
        assert fault.t - float(str(fault.payload["since"])) >= 3.0  # from its last sign on


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_never_comes_back_is_named_by_being_behind(run_file: MakeFile) -> None:
    path = run_file(**FIELDS)
    folder = RunFolder(load(path).folder)
    arm(folder.traps, Failpoint("t", "sleep", "voted", rank=0, step=9, ms=600_000))
    assert go(path)["status"] == "done"
    first = supervised(folder, "hang")[0].payload
    assert (first["rank"], first["phase"], first["step"]) == (0, "voted", 9)
    assert "come further" in str(first["why"])
    stack = (folder.logs / "attempt-0/rank-0.stack").read_text()
    assert "failpoints.py" in stack  # where it sleeps
    assert "failpoints.py" in str(supervised(folder, "fault")[0].payload["reason"])


SLOW = """
import os, time
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 8)
        self.head = nn.Linear(8, 300)

    def forward(self, tokens):
        time.sleep(0.12 if os.environ.get("RANK") == "1" and self.training else 0.02)
        return self.head(self.embed(tokens))

def build():
    return Own()
"""


class Heard(Listener):
    def __init__(self) -> None:
        self.changes: list[StragglerChange] = []

    def straggler(self, change: StragglerChange) -> None:
        self.changes.append(change)


def test_a_slow_rank_is_told_once(
    tmp_path: Path, run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.launch.supervisor.watcher.STEPS_S", 0.3)
    (tmp_path / "own.py").write_text(SLOW)
    fields: dict[str, Any] = OWN_FIELDS | FIELDS | {"model.module": f"{tmp_path}/own.py:build"}
    listener = Heard()
    report = go(run_file(**fields | {"train.steps": 60}), listener=listener)
    events = supervised(RunFolder(Path(report["folder"])), "straggler")
    first = events[0].payload
    assert (first["rank"], first["slow"]) == (1, True)
    assert float(str(first["factor"])) > 1.3
    assert [c.rank for c in listener.changes] == [e.payload["rank"] for e in events]
    assert report["stragglers"][0]["rank"] == 1


def test_a_crash_loop_says_why_with_the_last_stack(tmp_path: Path, run_file: MakeFile) -> None:
    path = run_file(**FIELDS | {"guard.restarts": 1})
    folder = RunFolder(load(path).folder)
    for name in ("first", "second"):
        arm(folder.traps, Failpoint(name, "raise", "forward", rank=1, step=3))
    with pytest.raises(RunFailed) as caught:
        go(path)
    message = str(caught.value)
    assert "2 tries in a row brought no new step" in message
    assert "drill: trap second" in message
    assert "failpoints.py" in message  # the frames that led there
