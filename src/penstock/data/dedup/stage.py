"""What the deduplications share: how they get the texts of a part, and a stage of all parts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.format.columns import Columns
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool, run_stage
from penstock.errors import PenstockError

# Part → its texts and their scores. Called in any process, so it is picklable and has no state.
Read = Callable[[int], tuple[Sequence[str], npt.ArrayLike]]


def read_part(read: Read, part: int) -> tuple[Sequence[str], npt.NDArray[np.float64]]:
    texts, scores = read(part)
    given = np.asarray(scores, np.float64)
    if given.shape != (len(texts),):
        raise PenstockError(
            f"Deduplication: part {part} has {len(texts)} texts and scores of shape {given.shape}. "
            "Give one score for each text."
        )
    return texts, given


def each_part(
    name: str,
    folder: Path,
    compute: Callable[..., Columns],
    parts: int,
    args: tuple[object, ...],
    workers: int | WorkerPool,
    progress: Progress | None,
) -> list[Path]:
    """A stage of one file for each part: `compute(part, *args)`."""
    paths = [folder / f"{part:06d}" for part in range(parts)]
    tasks = [Task(path, compute, (part, *args)) for part, path in enumerate(paths)]
    run_stage(name, tasks, workers, progress)
    return paths
