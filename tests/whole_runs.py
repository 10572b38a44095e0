"""Whole runs for tests: starts them, acts at a step, and reads how far they are."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.ledger.journal.read import read_curve, read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.report.screen import summary

STEPS = 60
FIELDS = {
    "train.steps": STEPS,
    "train.precision": "bf16",  # the weights in full precision are part of what is saved
    "guard.checkpoint": "10 steps",
    "evaluate.every": "20 steps",
}
OWN_FIELDS = {
    "model.layers": None,
    "model.hidden": None,
    "model.heads": None,
    "model.kv_heads": None,
    "model.ffn": None,
    "model.tied": None,
    "train.learning_rate": 0.01,
    "train.steps": 12,
    "guard.restarts": 0,
}
MakeFile = Callable[..., Path]


class At(Listener):
    """A listener that does something once, when the run has reached a step."""

    def __init__(self, step: int, act: Callable[[RunFolder], None]) -> None:
        self.step, self.act, self.folder = step, act, None
        self.done = False

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self.folder = folder
        # Not in `tick`, which comes ten times a second: a step of this size takes milliseconds.
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while reached(self.folder) < self.step:
            time.sleep(0.001)
        self.act(self.folder)
        self.done = True


def reached(folder: RunFolder) -> int:
    """Return the newest step that any attempt has recorded."""
    curves = [read_curve(f.path)["step"] for f in journal_files(folder.journal, "curve")]
    return max((int(c[-1]) for c in curves if len(c)), default=0)


def pids(folder: RunFolder) -> list[int]:
    """Return the processes of the newest attempt's ranks."""
    files = journal_files(folder.journal, "events")
    last = max(f.attempt for f in files)
    events = [e for f in files if f.attempt == last for e in read_events(f.path)]
    return [int(str(e.payload["pid"])) for e in events if e.kind == "start"]


def go(path: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    """Train a run file and return its report."""
    return summary(start(load(path, list(overrides)), **options))
