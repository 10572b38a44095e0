"""A whole run of a model with experts: launched, trained, evaluated, sampled and gone on with."""

from collections.abc import Callable
from pathlib import Path

from penstock.launch.start import start
from penstock.run.load import load
from penstock.watch.report.screen import summary

FIELDS = {
    "model.experts": 4,
    "model.experts_active": 2,
    "model.expert_ffn": 32,
    "model.shared_experts": 1,
    "train.steps": 12,
    "evaluate.every": "6 steps",
    "layout.shard": 2,
    "layout.expert": 2,
    "cluster.accelerators": 2,
}


def test_a_model_with_experts_trains_on_two_ranks_and_goes_on_with_one(
    run_file: Callable[..., Path],
) -> None:
    path = run_file("experts", **FIELDS)
    first = summary(start(load(path)))
    assert first["status"] == "done"
    assert first["layout"]["expert"] == 2
    assert first["val_loss"] < first["val_losses"][0][1] - 0.5
    assert isinstance(first["sample"], str)
    longer = ["train.steps=18", "layout.expert=1", "layout.shard=1", "cluster.accelerators=1"]
    more = summary(start(load(path, longer)))
    assert more["status"] == "done"
    assert more["resumed_from"] == 12
    assert more["params"] == first["params"]
    assert more["val_loss"] < first["val_loss"]
