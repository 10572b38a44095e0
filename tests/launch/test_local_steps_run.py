"""Whole runs of replicas that take local steps: killed, stopped, made longer."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder
from penstock.run.load import load
from whole_runs import At, go, pids

FIELDS = {
    "train.steps": 24,
    "train.optimizer": "muon",
    "train.sync.local_steps": 7,
    "train.sync.compress": "int2",
    "guard.checkpoint": "5 steps",
    "evaluate.every": "6 steps",
    "cluster.accelerators": 2,
    "layout.replicate": 2,
    "layout.microbatch": 2,
}


def test_local_steps_killed_in_a_round_lose_nothing(run_file: Callable[..., Path]) -> None:
    calm = go(run_file("calm", **FIELDS))
    assert (calm["status"], calm["steps"], calm["ranks"]) == ("done", 24, 2)
    # Each at the end of the round in which it falls: 6, 12, 18 and 24.
    assert [step for step, _ in calm["val_losses"]] == [0, 7, 14, 21, 24]
    assert calm["val_loss"] < calm["val_losses"][0][1]
    # The report has every round, and the plan of the launch said to the byte what they would send.
    told = calm["rounds"]
    assert (told["rounds"], told["planned"], told["lag"], len(told["members"])) == (4, 4, 0, 2)
    planned = json.loads((Path(calm["folder"]) / "plan.json").read_text())["predicted"]["sync"]
    assert [one["sent_bytes"] for one in told["members"]] == [planned["run_published_bytes"]] * 2
    assert planned["rounds"] == 4

    def kill(folder: RunFolder) -> None:
        os.kill(pids(folder)[1], signal.SIGKILL)

    listener = At(12, kill)
    killed = go(run_file("killed", **FIELDS), listener=listener)
    assert listener.done
    assert killed["resumed_from"] is not None
    assert killed["weights_hash"] == calm["weights_hash"]
    assert killed["val_losses"] == calm["val_losses"]

    stop = At(9, lambda folder: folder.request("stop"))
    stopped = go(run_file("stopped", **FIELDS), listener=stop)
    if stopped["status"] != "done":  # it was not past its last round yet
        assert stopped["steps"] % 7 == 0  # replicas learn of it when they agree
        stopped = go(run_file("stopped", **FIELDS))
    assert stopped["weights_hash"] == calm["weights_hash"]


@pytest.mark.slow
def test_what_auto_means_is_chosen_once_and_kept(run_file: Callable[..., Path]) -> None:
    """One machine has no slow link, so replicas agree in every step; a resume asks nobody again."""
    fields = {name: value for name, value in FIELDS.items() if "sync" not in name}
    fields |= {"train.sync.local_steps": "auto", "train.steps": 8}
    first = go(run_file("auto", **fields))
    folder = RunFolder(Path(first["folder"]))
    assert load(folder.run_file).train.sync.local_steps == 1
    before = fingerprint(load(folder.run_file))
    longer = go(run_file("auto", **fields | {"train.steps": 12}))
    assert (longer["status"], longer["steps"]) == ("done", 12)
    after = load(folder.run_file)
    assert after.train.sync.local_steps == 1
    shorter = {"train": after.train.model_copy(update={"steps": 8})}
    assert fingerprint(after.model_copy(update=shorter)) == before


def test_a_longer_run_goes_on_and_its_checkpoints_are_whole(
    run_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = run_file("calm", **FIELDS)
    go(path)
    longer = go(run_file("calm", **FIELDS | {"train.steps": 30}))
    assert (longer["status"], longer["steps"]) == ("done", 30)
    events = [
        line
        for file in journal_files(tmp_path / "runs/calm/journal", "events")
        for line in read_events(file.path)
    ]
    assert sorted({e.payload["step"] for e in events if e.kind == "round"}) == [
        7,
        14,
        21,
        24,
        28,
        30,
    ]
    asked = ["checkpoint", "verify", str(tmp_path / "runs/calm")]
    assert CliRunner().invoke(app, asked).exit_code == 0
