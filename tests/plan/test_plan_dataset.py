"""What the plan knows of data is what the trainer will count."""

from pathlib import Path

import numpy as np
import pytest

import made_plans as made
from made_sets import made_set
from penstock.data.stream import Stream
from penstock.errors import PenstockError
from penstock.plan.dataset import Sizes, fitted, needed, sizes


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    where = tmp_path / "datasets"
    return {
        name: made_set(where, np.arange(count) % 300, [0], name=name, packed=packed)
        for name, count, packed in [("one", 4001, 0), ("two", 900, 0), ("packed", 2401, 48)]
    }


MIX = [{"dataset": "one", "weight": 3}, {"dataset": "two", "weight": 1}]


def test_a_mixture_has_the_sizes_of_its_stream(sets) -> None:
    run = made.run(data={"mix": MIX, "sequence": 16}, evaluate={"holdout": 0.1})
    stream = Stream([(sets["one"], 3), (sets["two"], 1)], 16, seed=0, holdout=0.1)
    assert sizes(run) == Sizes(300, stream.samples, 16 * stream.held_out)
    assert stream.held_out > 0


def test_a_mixture_with_a_part_that_is_not_built_has_none(sets) -> None:
    run = made.run(data={"mix": [*MIX, {"dataset": "nowhere", "weight": 1}], "sequence": 16})
    assert sizes(run) is None


def test_epochs_of_a_mixture_are_refused(sets) -> None:
    run = made.run(data={"mix": MIX, "sequence": 16}, train={"epochs": 2})
    with pytest.raises(PenstockError, match="epochs of their own"):
        needed(run)


@pytest.mark.parametrize(
    "spec", ["/data/crawl/*.jsonl", "s3://bucket/web@abc", "hf:org/name", "recipe.toml", "../x"]
)
def test_what_is_not_a_name_is_not_looked_up(sets, spec: str) -> None:
    assert sizes(made.run(data={"dataset": spec, "sequence": 16})) is None


def test_a_packed_dataset_decides_the_sequence_unless_the_file_does(sets) -> None:
    manifest = sets["packed"].manifest
    run = made.run(data={"dataset": "packed"}, train={"tokens": "1M"})
    assert fitted(run, [manifest]).sequence == 48
    assert sizes(run).samples == Stream(sets["packed"], 48, 0, run.evaluate.holdout).samples
    given = made.run(data={"dataset": "packed", "sequence": 16}, train={"tokens": "1M"})
    assert fitted(given, [manifest]) == given
    batch = made.run(data={"dataset": "packed"}, train={"tokens": "1M", "batch_tokens": 4096})
    with pytest.raises(PenstockError, match=r"write 4080 or 4128.*packed for sequences of 48"):
        fitted(batch, [manifest])
