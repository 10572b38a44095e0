"""Live mode on a GPU that two replicas share: what they exchange goes by way of the host."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.meter import devices
from penstock.run.folder import RunFolder
from penstock.run.load import load

pytestmark = pytest.mark.gpu


class KillOnce(Listener):
    """Kills a replica once both are at work, and stops the run when it is back."""

    def __init__(self, trap: Failpoint) -> None:
        self.trap, self.armed, self.stopped = trap, False, False

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self.folder = folder

    def tick(self) -> None:
        files = journal_files(self.folder.journal, "events")
        ready = [e for f in files for e in read_events(f.path) if e.kind == "ready"]
        if not self.armed and len(ready) == 2:
            self.armed = True
            arm(self.folder.traps, self.trap)
        if not self.stopped and len(ready) == 3:
            self.stopped = True
            self.folder.request("stop")


@pytest.mark.parametrize("phase", ["reduce", "voted"])
def test_a_lost_replica_is_healed(
    run_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    machine = replace(devices.find(), count=2)  # each rank takes the one there is
    monkeypatch.setattr(devices, "find", lambda: machine)
    fields = {
        "train.steps": 100_000,
        "train.precision": "bf16",
        "guard.mode": "live",
        "evaluate.every": "never",
        "cluster.accelerators": 2,
        "layout.replicate": 2,
    }
    killer = KillOnce(Failpoint("kill", "kill", phase, rank=1))
    folder = start(load(run_file(**fields)), listener=killer)
    assert json.loads((folder.traps / "kill.fired").read_text())["rank"] == 1
    ends = [
        [e.payload for e in read_events(f.path) if e.kind == "end"][-1]
        for f in journal_files(folder.journal, "events")
    ]
    assert [end["result"] for end in ends] == ["stopped", "stopped"]
    assert ends[0]["weights_hash"] == ends[1]["weights_hash"]
