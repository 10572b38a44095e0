"""A whole run on a pipeline: trained, validated, killed, resumed, and gone on with in one piece."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from test_launch_runs import At, go, pids

from penstock.run.folder import RunFolder

FIELDS = {
    "model.layers": 3,
    "train.steps": 24,
    "train.precision": "fp32",
    "guard.checkpoint": "6 steps",
    "evaluate.every": "8 steps",
    "cluster.accelerators": 2,
    "layout.pipeline": 2,
    "layout.microbatch": 3,
}


def test_a_pipeline_killed_at_work_ends_with_the_weights_of_one_that_was_not(
    run_file: Callable[..., Path],
) -> None:
    calm = go(run_file("calm", **FIELDS))
    assert (calm["status"], calm["steps"], calm["ranks"]) == ("done", 24, 2)
    assert [step for step, _ in calm["val_losses"]] == [0, 8, 16, 24]
    assert isinstance(calm["sample"], str)

    def kill(folder: RunFolder) -> None:
        os.kill(pids(folder)[1], signal.SIGKILL)

    listener = At(9, kill)
    killed = go(run_file("killed", **FIELDS), listener=listener)
    assert listener.done
    assert killed["resumed_from"] is not None
    assert killed["weights_hash"] == calm["weights_hash"]

    whole = FIELDS | {"cluster.accelerators": 1, "layout.pipeline": 1}
    alone = go(run_file("alone", **whole))
    assert alone["val_loss"] == pytest.approx(calm["val_loss"], rel=1e-4)


def test_what_a_pipeline_saved_goes_on_without_one(run_file: Callable[..., Path]) -> None:
    half = go(run_file("run", **FIELDS | {"train.steps": 12}))
    whole = FIELDS | {"cluster.accelerators": 1, "layout.pipeline": 1}
    report = go(run_file("run", **whole))
    assert half["status"] == report["status"] == "done"
    assert (report["steps"], report["ranks"]) == (24, 1)
    assert report["val_loss"] < half["val_loss"]
