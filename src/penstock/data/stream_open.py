"""From the run file to its datasets and its stream: when a run starts, and when it goes on.

A run keeps in its plan what it read, by version, so that it goes on with that whatever its sources
look like by then.
"""

import os
from typing import Any

from penstock.data.home import datasets_home, open_dataset
from penstock.data.shards import Dataset, Progress
from penstock.data.stream import Stream
from penstock.errors import PenstockError
from penstock.run.file import Run


def open_first(run: Run, progress: Progress | None = None) -> list[Dataset]:
    """The datasets of a new run, in the order of the file."""
    _set_cache(run)
    shape = run.model.base()
    vocab = shape.vocab if shape else None
    return [
        # A raw source is tokenized for the model that will read it.
        open_dataset(spec, progress, run.model.from_, vocab or None)
        for spec, _ in run.data.parts
    ]


def kept(datasets: list[Dataset]) -> str | dict[str, str] | list[str | dict[str, str]]:
    """What the plan of a run says of its data, so that it can be opened again: a name with its
    version, also where it lies if that is not here; a list of them for a mixture."""
    parts = [_kept(dataset) for dataset in datasets]
    return parts if len(parts) > 1 else parts[0]


def open_again(run: Run, plan: dict[str, Any], progress: Progress | None = None) -> list[Dataset]:
    """The datasets that the plan of a run names; those of the file where it names none."""
    if "dataset" not in plan:
        return open_first(run, progress)
    _set_cache(run)
    named = plan["dataset"]
    parts = named if isinstance(named, list) else [named]
    return [_open_part(part, progress) for part in parts]


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
    return {"id": dataset.id, "at": dataset.where}


def _open_part(part: str | dict[str, str], progress: Progress | None) -> Dataset:
    if isinstance(part, str):
        return open_dataset(part, progress)
    dataset = open_dataset(part["at"], progress)
    if dataset.id != part["id"]:
        raise PenstockError(
            f"The run reads {part['id']}, and at {part['at']} there is {dataset.id} now. Put "
            f"{part['id']} back, or start a new run."
        )
    return dataset


def _set_cache(run: Run) -> None:
    """By the environment, so that processes started from here use the same one."""
    if run.data.cache:
        os.environ["PENSTOCK_CACHE"] = run.data.cache
    if run.data.cache_bytes:
        os.environ["PENSTOCK_CACHE_BYTES"] = str(run.data.cache_bytes)
