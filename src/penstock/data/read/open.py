"""The datasets of a run that has begun, and its stream; `build/open.py` opens those of a new run.

A run keeps in its plan what it read, by version, so that it goes on with that whatever its sources
look like by then.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from penstock.data.format.manifest import MANIFEST
from penstock.data.format.named import STDLIB, datasets_home
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.run.schema.run import Run
from penstock.secret import redact

Named: TypeAlias = "str | dict[str, str] | list[str | dict[str, str]]"


def kept(datasets: list[Dataset]) -> Named:
    """What the plan of a run says of its data, so that it can be opened again: a name with its
    version, also where it lies if that is not here; a list of them for a mixture."""
    parts = [_kept(dataset) for dataset in datasets]
    return parts if len(parts) > 1 else parts[0]


def open_again(run: Run, plan: dict[str, Any]) -> list[Dataset]:
    """Open the datasets that the plan of a run names. Nothing is built."""
    named = plan["dataset"]
    parts = named if isinstance(named, list) else [named]
    with cache_of(run):
        return [
            _open_part(part, spec) for part, (spec, _) in zip(parts, run.data.parts, strict=True)
        ]


def stream_of(run: Run, datasets: list[Dataset]) -> Stream:
    weights = [weight for _, weight in run.data.parts]
    return Stream(
        list(zip(datasets, weights, strict=True)),
        run.sequence,
        run.train.seed,
        run.evaluate.holdout,
        order=run.data.order,
        marks=not run.data.across_documents,
        skip=run.data.on_bad_shard == "skip",
    )


def _kept(dataset: Dataset) -> str | dict[str, str]:
    if dataset.where == str(dataset.folder) and dataset.folder.parent == datasets_home():
        return dataset.id
    if is_url(dataset.where):
        return {"id": dataset.id, "at": redact(dataset.where)}
    # Wherever the run is gone on with from.
    return {"id": dataset.id, "at": str(dataset.folder.absolute())}


def _open_part(part: str | dict[str, str], spec: str) -> Dataset:
    """Open what the run has read so far, and nothing else."""
    id_ = part if isinstance(part, str) else part["id"]
    where: str | Path = datasets_home() / part if isinstance(part, str) else part["at"]
    if is_url(where) and redact(spec.rstrip("/")) == where:
        where = spec  # the plan is shown, so it keeps no password: the run file does
    if not is_url(where) and not (Path(where) / MANIFEST).is_file():
        raise PenstockError(_gone(id_, where, spec))
    dataset = Dataset.open(where)
    if dataset.id != id_:
        raise PenstockError(
            f"The run reads {id_}, and at {where} there is {dataset.id} now. Put {id_} back, or "
            "start a new run."
        )
    return dataset


def _gone(id_: str, where: str | Path, spec: str) -> str:
    again = f"copy {id_} there again"
    if spec == STDLIB:
        again += " (it belongs to the Python install that it was built with)"
    elif spec != id_ and not spec.startswith(str(where)):
        again += f", or build it again from {spec} as that was then"
    return (
        f"The run reads {id_}, which is not at {where} any more. To go on, {again}; or start a new "
        "run with `--fresh` or another name."
    )


@contextmanager
def cache_of(run: Run) -> Iterator[None]:
    """By the environment, so that processes that help to build use the same cache; for as long as
    the datasets are opened, since the next run of this process may name another one, or none."""
    given = {"PENSTOCK_CACHE": run.data.cache, "PENSTOCK_CACHE_BYTES": run.data.cache_bytes}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: str(value) for name, value in given.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
