"""Whole runs on ranks that share matrices or sequences: the curve and the words of one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.start import start
from penstock.run.load import load
from penstock.watch.report.screen import summary

FIELDS = {"train.steps": 10, "train.precision": "fp64", "data.sequence": 32, "cluster.nodes": 1}


def run(path: Path, ranks: int, *overrides: str) -> dict[str, Any]:
    return summary(start(load(path, [f"cluster.accelerators={ranks}", *overrides])))


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {"tensor": 2}),
        pytest.param(2, {"context": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"context": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_as_that_of_one_rank_does(
    ranks: int, layout: dict[str, int], run_file: Callable[..., Path]
) -> None:
    alone = run(run_file("alone", **FIELDS), 1)
    shared = {f"layout.{name}": ways for name, ways in layout.items()}
    report = run(run_file("shared", **FIELDS | shared), ranks)
    assert report["status"] == "done"
    assert report["ranks"] == ranks
    expected = [loss for _, loss in alone["val_losses"]]
    assert len(expected) == 3
    assert [loss for _, loss in report["val_losses"]] == pytest.approx(expected, rel=1e-9)
    assert report["sample"] == alone["sample"]
