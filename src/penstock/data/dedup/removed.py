"""What a deduplication took away, part by part, and for which copy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.data.dedup.groups import Parts
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import Columns, read_columns


@dataclass(frozen=True)
class Removed:
    """One part's removed documents or lines, rising, and the place of the copy that stays."""

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


def removed_of_part(part: int, parts: Parts, pairs: tuple[Path, ...]) -> Columns:
    """Turns numbers into places. Each file of pairs is sorted, so only this part's are read."""
    numbers, kept = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for path in pairs:
        columns = read_columns(path)
        first, last = np.searchsorted(columns["removed"], parts.offsets[part : part + 2])
        numbers.append(columns["removed"][first:last].astype(np.int64))
        kept.append(columns["kept"][first:last].astype(np.int64))
    mine, theirs = np.concatenate(numbers), np.concatenate(kept)
    order = np.argsort(mine)
    mine, theirs = mine[order] - parts.offsets[part], theirs[order]
    kept_part = np.searchsorted(parts.offsets, theirs, side="right") - 1
    theirs -= np.asarray(parts.offsets)[kept_part]
    here = read_columns(parts.paths[part])
    if "documents" not in here:
        return {"documents": mine, "kept_part": kept_part, "kept_documents": theirs}
    result: Columns = {
        "documents": here["documents"][mine],
        "lines": here["lines"][mine],
        "kept_part": kept_part,
    }
    for name in ("documents", "lines"):
        column = np.empty(len(theirs), np.uint32)
        for other in np.unique(kept_part):
            there = kept_part == other
            column[there] = read_columns(parts.paths[other])[name][theirs[there]]
        result[f"kept_{name}"] = column
    return result
