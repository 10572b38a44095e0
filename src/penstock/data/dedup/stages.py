"""Stages that all deduplications share: reading a part, a task per part, the list of removals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.groups import SpilledParts
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import ColumnFile, Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.store.object_path import map_places
from penstock.data.workers.pool import Executor, Task, run_stage
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
    workers: int | Executor,
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
    own = parts.offsets[part : part + 2]
    find = partial(_find_removed, first=own[0], last=own[1])
    for columns in map_places(find, pairs, parts.like):
        numbers.append(columns["removed"].astype(np.int64))
        kept.append(columns["kept"].astype(np.int64))
    removed_at, kept_at = np.concatenate(numbers), np.concatenate(kept)
    order = np.argsort(removed_at)
    removed_at, kept_at = removed_at[order] - parts.offsets[part], kept_at[order]
    kept_part = np.searchsorted(parts.offsets, kept_at, side="right") - 1
    kept_at -= np.asarray(parts.offsets)[kept_part]
    mine = read_columns(parts.paths[part], "documents", "lines")
    if "documents" not in mine:  # items are documents
        return {"documents": removed_at, "kept_part": kept_part, "kept_documents": kept_at}
    result: Columns = {
        "documents": mine["documents"][removed_at],
        "lines": mine["lines"][removed_at],
        "kept_part": kept_part,
    }
    for name in ("documents", "lines"):
        column = np.empty(len(kept_at), np.uint32)
        for other in np.unique(kept_part):
            in_other = kept_part == other
            stored = read_columns(parts.paths[other], name)[name]
            column[in_other] = stored[kept_at[in_other]]
        result[f"kept_{name}"] = column
    return result


def _find_removed(pairs: Path, first: int, last: int) -> Columns:
    return ColumnFile(pairs).find("removed", first, last, "kept")[1]
