"""Runs: the sorted keys of several parts, merged into one file for each band.

A slice of keys is a short range of each file. With tens of thousands of parts, thousands of slices
would open each of them; so a large set is shuffled in two steps, which opens few files in each.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.data.dedup.groups import SpilledParts
from penstock.data.format.columns import ColumnFile, Columns, with_index
from penstock.data.format.types import Progress
from penstock.data.store.object_path import map_places
from penstock.data.workers.pool import Executor, Task, run_stage

RUN_PARTS = 16  # parts in a run
RUNS_FROM = 2048  # parts; fewer are not merged


def merge_runs(
    folder: Path,
    spill: SpilledParts,
    bands: int,
    workers: int | Executor,
    progress: Progress | None,
    stage: str = "merge keys",
) -> SpilledParts:
    """Merge the keys of a large set; return the parts with their runs. A small set stays."""
    parts = len(spill.paths)
    if parts < RUNS_FROM:
        return spill
    groups = [(at, min(at + RUN_PARTS, parts)) for at in range(0, parts, RUN_PARTS)]
    tasks = [
        [
            Task(folder / "runs" / f"{band}-{first:06d}", _merge, (spill, band, first, last))
            for first, last in groups
        ]
        for band in range(bands)
    ]
    run_stage(stage, [task for some in tasks for task in some], workers, progress)
    runs = tuple(tuple(task.path for task in some) for some in tasks)
    return replace(spill, runs=runs, run_offsets=tuple(spill.offsets[first] for first, _ in groups))


def _merge(spill: SpilledParts, band: int, first: int, last: int) -> Columns:
    """Return one band of some parts as the columns of a part with one band."""

    def load(part: int) -> Columns:
        file = ColumnFile(spill.paths[part])
        names = [name for name in ("keys", "items", "lows", "carried") if name in file.columns]
        found = file.cut(0, file.columns["keys"].shape[1], *names, row=band)
        # Items are numbered from the first one of the run; the sum of parts fits.
        found["items"] = found["items"] + np.uint32(spill.offsets[part] - spill.offsets[first])
        return found

    loaded = list(map_places(load, range(first, last), spill.like))
    joined = {name: np.concatenate([one[name] for one in loaded]) for name in loaded[0]}
    del loaded
    order = np.argsort(joined["keys"], kind="stable")  # items stay in order within a key
    return with_index({name: column[order][None] for name, column in joined.items()}, "keys")
