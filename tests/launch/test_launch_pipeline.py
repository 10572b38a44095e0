"""A whole run on a pipeline: trained, validated, killed, resumed, and gone on with in one piece."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from penstock.run.folder import RunFolder
from whole_runs import At, go, pids

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


def test_a_pipeline_killed_at_work_loses_nothing_and_goes_on_without_being_one(
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

    whole = FIELDS | {"cluster.accelerators": 1, "layout.pipeline": 1, "train.steps": 32}
    longer = go(run_file("calm", **whole))
    assert (longer["status"], longer["steps"], longer["ranks"]) == ("done", 32, 1)
    assert [step for step, _ in longer["val_losses"]] == [0, 8, 16, 24, 32]  # not from the start
    assert longer["val_loss"] < calm["val_loss"]
