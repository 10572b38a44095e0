"""Sites as whole runs over a folder: processes of their own, killed, late, and against replicas."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.launch.verify import verify
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from whole_runs import go, reached

SECRET = "0123456789abcdef0123456789abcdef"
FIELDS = {
    "train.steps": 12,
    "train.sync.local_steps": 4,
    "train.sync.compress": "int4",
    "cluster.accelerators": 1,
    "layout.microbatch": 2,
    "guard.checkpoint": "2 steps",
    "guard.fast": "never",
    "evaluate.every": "4 steps",
}
MakeFile = Callable[..., Path]


class Site:
    """A site: a process of `penstock train`, and the folder of its run."""

    def __init__(self, file: Path, name: str, *overrides: str) -> None:
        self.name = name
        where = file.parent / name
        self.folder = RunFolder(where / file.stem)
        self.command = [
            *(sys.executable, "-m", "penstock", "train", str(file), f"dir={where}"),
            *(f"sites.name={name}", f"sites.bucket={file.parent / 'bucket'}", *overrides),
        ]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = os.environ | {"PENSTOCK_SITES_SECRET": SECRET}
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> None:
        assert self.process is not None
        text, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, text

    def events(self, kind: str) -> list[dict[str, object]]:
        files = journal_files(self.folder.journal, "events")
        lines = [line for file in files for line in read_events(file.path)]
        return [line.payload for line in lines if line.kind == kind]

    def weights(self) -> object:
        return [e["weights_hash"] for e in self.events("end") if e.get("weights_hash")][-1]

    def kill_at(self, step: int) -> None:
        """Kill all its processes when it has reached a step."""
        assert self.process is not None
        while reached(self.folder) < step:
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.01)
        for event in self.events("start")[-1:]:
            os.kill(self.process.pid, signal.SIGKILL)
            os.kill(int(str(event["pid"])), signal.SIGKILL)
        self.process.communicate()


def test_two_sites_end_with_the_weights_of_two_replicas(run_file: MakeFile) -> None:
    """One of them is killed inside a round and goes on from its checkpoint."""
    direct = FIELDS | {"cluster.accelerators": 2, "layout.replicate": 2}
    replicas = go(run_file("replicas", **direct))
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    a, b = Site(file, "a", "sites.grace=10 min"), Site(file, "b", "sites.grace=10 min")
    a.start()
    b.start()
    b.kill_at(6)
    b.start()
    a.end()
    b.end()
    assert a.weights() == b.weights() == replicas["weights_hash"]
    rounds = a.events("site_round")
    assert [one["number"] for one in rounds] == [1, 2, 3, 4]
    assert all(one["sites"] == {"a": n, "b": n} for n, one in enumerate(rounds[1:], 1))
    assert all(int(str(one["sent_bytes"])) > 0 for one in rounds)
    assert a.events("site_refused") == b.events("site_refused") == []


def test_a_site_that_cannot_be_is_one_message_at_check(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**fields: object) -> str:
        path = run_file("s", **FIELDS, **{"sites.bucket": "x", "sites.name": "a"} | fields)
        return str(verify(load(path)).refused)

    monkeypatch.delenv("PENSTOCK_SITES_SECRET", raising=False)
    assert "the variable PENSTOCK_SITES_SECRET is not set" in refused()
    monkeypatch.setenv("PENSTOCK_SITES_SECRET", SECRET)
    assert refused() == "None"
    wide = {"cluster.accelerators": 2, "layout.tensor": 2}
    file = run_file("w", **FIELDS | wide, **{"sites.bucket": "x", "sites.name": "a"})
    assert "[sites]: a site of 2 ranks is not built yet" in str(verify(load(file)).refused)


@pytest.mark.slow
def test_a_site_that_is_stopped_while_it_waits_goes_on_later(run_file: MakeFile) -> None:
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    a, b = (Site(file, name, "sites.quorum=2", "sites.grace=10 min") for name in "ab")
    a.start()
    waits = file.parent / "bucket" / "sites" / "published" / "000000" / "a"
    while not waits.exists():
        time.sleep(0.05)
    a.folder.request("stop")
    a.end()
    assert a.events("end")[-1]["result"] == "stopped"
    b.start()
    a.start()
    a.end()
    b.end()
    assert a.weights() == b.weights()
    assert reached(a.folder) == reached(b.folder) == 12


@pytest.mark.slow
def test_a_site_that_dies_is_replaced_by_a_new_one(run_file: MakeFile) -> None:
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    quick = ("sites.quorum=2", "sites.grace=2 s", "sites.late=1", "train.steps=40")
    a, b, c = (Site(file, name, *quick) for name in "abc")
    a.start()
    b.start()
    b.kill_at(6)
    c.start()
    a.end()
    c.end()
    assert a.weights() == c.weights()
    merged = [(name, base) for e in a.events("site_round") for name, base in e["sites"].items()]
    assert len(merged) == 20  # leases: every sample once
    assert len(set(merged)) == 20
    assert {name for name, _ in merged} == {"a", "b", "c"}
