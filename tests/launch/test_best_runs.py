"""Whole runs that keep their best checkpoint and stop early: the same with and without faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.guard.checkpoints import list_checkpoints
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.guard.format.published import published_checkpoints
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.model import choose_checkpoint
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.html import page
from penstock.watch.report.screen import summary
from penstock.watch.web.sections import checkpoints

MakeFile = Callable[..., Path]
# The learning rate rises until the loss does too: it is lowest at step 6, and the run stops at 15.
FIELDS: dict[str, Any] = {
    "train.steps": 40,
    "train.learning_rate": 3.0,
    "train.warmup": "75%",
    "train.clip": 0,
    "train.precision": "fp64",
    "evaluate.every": "3 steps",
    "evaluate.patience": 3,
    "evaluate.keep_best": True,
    "guard.checkpoint": "4 steps",
    "guard.keep": 1,
    "guard.fast": "never",
    "cluster.accelerators": 1,
}


def saved(folder: Path) -> list[int]:
    return [one.step for one in published_checkpoints(folder / "checkpoints")]


def test_a_run_stops_early_keeps_its_best_and_decides_alike_after_faults(
    run_file: MakeFile,
) -> None:
    seen: list[penstock.Event] = []
    calm = penstock.train(run_file("calm", **FIELDS), on_event=seen.append)
    assert {"launching", "step", "evaluation", "checkpoint"} < {event.kind for event in seen}
    assert isinstance(last := seen[-1], penstock.Finished)
    assert (last.step, last.status) == (15, "stopped early")
    assert calm.status == "stopped early"
    losses = {step: loss for step, loss in calm.validation if loss is not None}
    assert list(losses) == [0, 3, 6, 9, 12, 15]
    assert min(losses, key=lambda step: losses[step]) == 6
    assert saved(calm.folder) == [15, 6]

    # The report names it, to people and to programs.
    best = summary(RunFolder(calm.folder))["best"]
    assert (best["step"], best["val_loss"]) == (6, losses[6])
    assert best["checkpoint"] == str(calm.folder / "checkpoints" / "step-00000006")
    told = f"{best['checkpoint']} (step 6, validation {losses[6]:.3f})"
    assert told in page(RunFolder(calm.folder))
    shown = CliRunner().invoke(app, ["report", str(calm.folder)]).stdout
    assert "".join(f"best{told}".split()) in "".join(shown.split())  # wrapped or not

    kept = checkpoints(RunFacts(RunView(RunFolder(calm.folder))))["kept"]
    assert [(one["state"], one["good"]) for one in kept] == [("whole", True), ("whole, best", True)]

    # Once between evaluations, and once after the last save, before the rank could say so.
    folder = RunFolder(calm.folder.parent / "killed")
    arm(folder.traps, Failpoint("a", "kill", "forward", step=14))
    arm(folder.traps, Failpoint("b", "kill", "end"))
    killed = penstock.train(run_file("killed", **FIELDS))
    assert killed.faults == 2
    assert killed.status == "stopped early"
    assert killed.weights_hash == calm.weights_hash
    assert killed.validation == calm.validation
    assert saved(killed.folder) == [15, 6]

    # It is marked, chosen, and named when the run is given again.
    run = load(run_file("calm", **FIELDS))
    found, _ = list_checkpoints(RunFolder(calm.folder))
    assert [(one.step, one.best, one.state) for one in found] == [
        (15, False, "whole"),
        (6, True, "whole, best"),
    ]
    assert choose_checkpoint(RunFolder(calm.folder), best=True)[0].step == 6
    again = CliRunner().invoke(app, ["train", str(run_file("calm", **FIELDS))])
    assert again.exit_code == 0
    assert "has stopped early at step 15" in again.stdout
    assert "no improvement in 3 evaluations (evaluate.patience = 3)" in " ".join(
        again.stdout.split()
    )

    # With more patience it goes on, and counts on.
    longer = penstock.load(run_file("calm", **FIELDS), {"evaluate.patience": 4})
    assert longer.folder == run.folder
    more = penstock.train(longer)
    assert (more.status, more.step) == ("stopped early", 18)
    assert saved(calm.folder) == [18, 6]


@pytest.mark.parametrize("field", ["keep_best=true", "patience=5"])
@pytest.mark.parametrize("without", ["evaluate.every=never", "evaluate.holdout=0"])
def test_neither_goes_without_evaluations(run_file: MakeFile, field: str, without: str) -> None:
    with pytest.raises(penstock.PenstockError, match=r"evaluate\.\w+ = \w+: needs"):
        load(run_file(), [f"evaluate.{field}", without])
