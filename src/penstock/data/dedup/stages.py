"""Stages that all deduplications share: reading a part, a task per part, the list of removals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.groups import SpilledParts
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool, run_stage
from penstock.errors import PenstockError

# Returns the texts of a part and their scores. Any process may call it, so it must be picklable and
# have no state.
ReadPart = Callable[[int], tuple[Sequence[str], npt.ArrayLike]]


def read_part(read: ReadPart, part: int) -> tuple[Sequence[str], npt.NDArray[np.float64]]:
    """Return the texts and scores of a part, checked to be as many."""
    texts, raw = read(part)
    scores = np.asarray(raw, np.float64)
    if scores.shape != (len(texts),):
        raise PenstockError(
            f"Deduplication: part {part} has {len(texts)} texts and scores of shape "
            f"{scores.shape}. Give one score for each text."
        )
    return texts, scores


def run_per_part(
    name: str,
    folder: Path,
    compute: Callable[..., Columns],
    parts: int,
    args: tuple[object, ...],
    workers: int | WorkerPool,
    progress: Progress | None,
) -> list[Path]:
    """Run `compute(part, *args)` for each part, write one file each and return their paths."""
    paths = [folder / f"{part:06d}" for part in range(parts)]
    tasks = [Task(path, compute, (part, *args)) for part, path in enumerate(paths)]
    run_stage(name, tasks, workers, progress)
    return paths


@dataclass(frozen=True)
class Removed:
    """The removed documents or lines of a part, in order, and the copies that stay instead."""

    documents: Int64  # within the part
    lines: Int64 | None  # within the document; None when whole documents were removed
    kept_part: Int64
    kept_documents: Int64
    kept_lines: Int64 | None

    @staticmethod
    def read(path: Path) -> "Removed":
        columns = {
            name: np.asarray(column).astype(np.int64) for name, column in read_columns(path).items()
        }
        return Removed(
            columns["documents"],
            columns.get("lines"),
            columns["kept_part"],
            columns["kept_documents"],
            columns.get("kept_lines"),
        )


def list_removed(part: int, parts: SpilledParts, pairs: tuple[Path, ...]) -> Columns:
    """Return what was removed from a part, with positions in place of item numbers.

    Each file of pairs is sorted by the removed item, so only this part's range is read.
    """
    numbers, kept = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for path in pairs:
        columns = read_columns(path)
        first, last = np.searchsorted(columns["removed"], parts.offsets[part : part + 2])
        numbers.append(columns["removed"][first:last].astype(np.int64))
        kept.append(columns["kept"][first:last].astype(np.int64))
    removed_at, kept_at = np.concatenate(numbers), np.concatenate(kept)
    order = np.argsort(removed_at)
    removed_at, kept_at = removed_at[order] - parts.offsets[part], kept_at[order]
    kept_part = np.searchsorted(parts.offsets, kept_at, side="right") - 1
    kept_at -= np.asarray(parts.offsets)[kept_part]
    own = read_columns(parts.paths[part])
    if "documents" not in own:  # items are documents
        return {"documents": removed_at, "kept_part": kept_part, "kept_documents": kept_at}
    result: Columns = {
        "documents": own["documents"][removed_at],
        "lines": own["lines"][removed_at],
        "kept_part": kept_part,
    }
    for name in ("documents", "lines"):
        column = np.empty(len(kept_at), np.uint32)
        for other in np.unique(kept_part):
            in_other = kept_part == other
            column[in_other] = read_columns(parts.paths[other])[name][kept_at[in_other]]
        result[f"kept_{name}"] = column
    return result
