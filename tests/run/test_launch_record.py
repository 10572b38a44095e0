"""plan.json as a typed record: every field that a launch writes has its place and its kind."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.meter.devices import Devices
from penstock.plan.dataset import DatasetSizes
from penstock.run.diff import with_choices
from penstock.run.folder import RunFolder
from penstock.run.launch_record import ForkOrigin, LaunchRecord
from penstock.run.schema.run import Run

CPU = Devices("cpu", 2, "", "", 2**34)


def written(**sections: Any) -> dict[str, Any]:
    """Return what a launch on two CPU cores writes."""
    model = {"model": {"preset": "llama-3m"}, "data": {"dataset": "x", "sequence": 128}}
    train = {"train": {"steps": 10, "batch_tokens": 1024, "learning_rate": 1e-3}}
    run = with_choices(Run.model_validate({"name": "x", **model, **train, **sections}))
    run = run.model_copy(update={"train": run.train.model_copy(update={"precision": "fp32"})})
    prepared = PreparedRun(run, DatasetSizes(300, 640, 1280), CPU, "x@1", "hash", "x@1")
    return prepared.plan_launch(LaunchRecord(forked_from=ForkOrigin("old", 7)))[1]


def test_every_field_of_a_launch_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = written()
    names = {field.name for field in fields(LaunchRecord)}
    assert plan.keys() <= names
    folder = RunFolder(tmp_path)
    folder.write_plan(plan)
    record = folder.read_launch_record()
    for name, value in plan.items():
        if name != "forked_from":
            assert getattr(record, name) == value, name
    assert record.forked_from == ForkOrigin("old", 7)
    assert record.launched


def test_a_run_without_a_launch_has_the_defaults(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).read_launch_record() == LaunchRecord()
    assert not LaunchRecord().launched


@pytest.mark.parametrize("name", sorted({field.name for field in fields(LaunchRecord)}))
def test_a_value_of_another_kind_counts_as_absent(name: str) -> None:
    odd = LaunchRecord.from_json({name: object()})
    assert odd == LaunchRecord()


def test_fields_of_a_later_version_are_left_alone() -> None:
    assert LaunchRecord.from_json({"ranks": 2, "new": 1}) == LaunchRecord(ranks=2)


def test_a_fork_whose_step_is_damaged_is_still_a_fork() -> None:
    record = LaunchRecord.from_json({"forked_from": {"run": "old", "step": "seven"}})
    assert record.forked_from == ForkOrigin("old", None)
