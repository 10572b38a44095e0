"""The datasets of a run that has begun, and its stream; `build/open.py` opens those of a new run.

A run stores the versions of its datasets in its plan, so that it continues with the same data even
if its sources have changed since.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from penstock.data.format.locate import STDLIB, datasets_home
from penstock.data.format.manifest import MANIFEST
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.run.schema.run import Run
from penstock.secret import redact

PlanEntry: TypeAlias = "str | dict[str, str] | list[str | dict[str, str]]"


def plan_entry(datasets: list[Dataset]) -> PlanEntry:
    """Return the `dataset` entry of plan.json: name@version, a list of them for a mixture.

    A dataset outside the home also has its place.
    """
    parts = [_plan_entry(dataset) for dataset in datasets]
    return parts if len(parts) > 1 else parts[0]


def open_planned(run: Run, entry: PlanEntry) -> list[Dataset]:
    """Open the datasets that the `dataset` entry of plan.json names. Builds nothing."""
    parts = entry if isinstance(entry, list) else [entry]
    with cache_environment(run):
        return [
            _open_part(part, spec) for part, (spec, _) in zip(parts, run.data.parts, strict=True)
        ]


def open_stream(run: Run, datasets: list[Dataset]) -> Stream:
    """Return the stream of samples that a run reads."""
    weights = [weight for _, weight in run.data.parts]
    return Stream(
        list(zip(datasets, weights, strict=True)),
        run.sample_tokens,
        run.train.seed,
        run.evaluate.holdout,
        order=run.data.order,
        marks=not run.data.across_documents and not run.train.on_pairs,
        skip=run.data.on_bad_shard == "skip",
    )


def _plan_entry(dataset: Dataset) -> str | dict[str, str]:
    if dataset.where == str(dataset.folder) and dataset.folder.parent == datasets_home():
        return dataset.id
    if is_url(dataset.where):
        return {"id": dataset.id, "at": redact(dataset.where)}
    # Absolute: the run may be resumed from another folder.
    return {"id": dataset.id, "at": str(dataset.folder.absolute())}


def _open_part(part: str | dict[str, str], spec: str) -> Dataset:
    """Open the dataset version that the run has read so far; refuse any other."""
    id_ = part if isinstance(part, str) else part["id"]
    where: str | Path = datasets_home() / part if isinstance(part, str) else part["at"]
    if is_url(where) and redact(spec.rstrip("/")) == where:
        where = spec  # the plan may be shown, so it holds no password; the run file does
    if not is_url(where) and not (Path(where) / MANIFEST).is_file():
        raise PenstockError(_missing_message(id_, where, spec))
    dataset = Dataset.open(where)
    if dataset.id != id_:
        raise PenstockError(
            f"The run reads {id_}, and at {where} there is {dataset.id} now. Put {id_} back, or "
            "start a new run."
        )
    return dataset


def _missing_message(id_: str, where: str | Path, spec: str) -> str:
    again = f"copy {id_} there again"
    if spec == STDLIB:
        again += " (it belongs to the Python install that it was built with)"
    elif spec != id_ and not spec.startswith(str(where)):
        again += f", or build it again from {spec} as it was then"
    return (
        f"The run reads {id_}, which is not at {where} any more. To go on, {again}; or start a new "
        "run with `--fresh` or another name."
    )


@contextmanager
def cache_environment(run: Run) -> Iterator[None]:
    """Set the cache that a run file names in the environment, for the time datasets are opened.

    The environment reaches the worker processes of a build too. It is restored at the end: the
    next run of this process may name another cache, or none.
    """
    fields = {"PENSTOCK_CACHE": run.data.cache, "PENSTOCK_CACHE_BYTES": run.data.cache_bytes}
    before = {name: os.environ.get(name) for name in fields}
    os.environ.update({name: str(value) for name, value in fields.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
