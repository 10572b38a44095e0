"""Items with equal keys, found in bounded memory.

Each part of the corpus spills its keys sorted, so a slice of the key space is one short range of
each part's file. A slice of all parts is merged in memory, and slices are cut so that one holds
about `SLICE_ITEMS` items however many there are. An item is a document or a line; its number counts
through all parts in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import U64, Int64
from penstock.data.format.columns import Columns, read_columns

SLICE_ITEMS = 1 << 22  # some 250 MB while one is merged
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """The spilled parts and the number of the first item of each; the last offset is the total."""

    paths: tuple[Path, ...]
    offsets: tuple[int, ...]

    @staticmethod
    def of(paths: Sequence[Path]) -> "Parts":
        sizes = [len(read_columns(path, "scores")["scores"]) for path in paths]
        return Parts(tuple(paths), tuple(int(n) for n in np.cumsum([0, *sizes])))

    @property
    def items(self) -> int:
        return self.offsets[-1]

    def slices(self, slice_items: int) -> int:
        """A power of two, so that a slice is a prefix of the key's bits."""
        return 1 << max(0, (-(-self.items // slice_items) - 1).bit_length())

    def column(self, name: str, numbers: Int64) -> npt.NDArray[Any]:
        """The entries of items in any order."""
        shape, dtype = (0,), np.dtype(np.float64)
        if self.paths:
            first = read_columns(self.paths[0], name)[name]
            shape, dtype = first.shape, first.dtype
        found = np.empty((len(numbers), *shape[1:]), dtype)
        part_of = np.searchsorted(self.offsets, numbers, side="right") - 1
        for part in np.unique(part_of):
            mine = np.flatnonzero(part_of == part)
            column = read_columns(self.paths[part], name)[name]
            found[mine] = column[numbers[mine] - self.offsets[part]]
        return found


def spilled(
    keys: U64, scores: npt.ArrayLike, lows: U64 | None = None, items: Int64 | None = None
) -> Columns:
    """The columns of a part: (bands, items) keys, each band sorted; `lows` widens them to 128 bits.

    `items` names the items that have keys, when not all do; every item has a score.
    """
    if items is None:
        items = np.arange(keys.shape[1])
    order = np.argsort(keys, axis=1, kind="stable")
    columns: Columns = {
        "keys": np.take_along_axis(keys, order, axis=1),
        "items": items[order].astype(np.uint32),
        # No score is the worst score.
        "scores": np.nan_to_num(
            np.asarray(scores, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf
        ),
    }
    if lows is not None:
        columns["lows"] = np.take_along_axis(lows, order, axis=1)
    return columns


def grouped(parts: Parts, band: int, piece: int, slices: int) -> tuple[Int64, Int64]:
    """The numbers of all items of a slice that share a key, group after group and rising in each,
    and the place of each group's first."""
    keys, lows, numbers = _load(parts, band, piece, slices)
    # Stable, and the parts are sorted runs in rising order: a merge that keeps numbers rising.
    order = np.argsort(keys, kind="stable") if lows is None else np.lexsort((lows, keys))
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    if lows is not None:
        lows = lows[order]
        same &= lows[1:] == lows[:-1]
    follows = np.concatenate([[False], same])
    shared = follows | np.concatenate([same, [False]]) if len(keys) else follows[:0]
    members = numbers[order[shared]]
    return members, np.flatnonzero(~follows[: len(keys)][shared])


def _load(parts: Parts, band: int, piece: int, slices: int) -> tuple[U64, U64 | None, Int64]:
    width = (1 << 64) // slices
    keys, lows, numbers = (
        [np.empty(0, np.uint64)],
        [np.empty(0, np.uint64)],
        [np.empty(0, np.int64)],
    )
    wide = False
    for path, offset in zip(parts.paths, parts.offsets, strict=False):
        columns = read_columns(path, "keys", "lows", "items")
        mine = columns["keys"][band]
        first = int(np.searchsorted(mine, np.uint64(piece * width)))
        last = len(mine)
        if piece + 1 < slices:
            last = int(np.searchsorted(mine, np.uint64((piece + 1) * width)))
        keys.append(mine[first:last])
        numbers.append(columns["items"][band][first:last].astype(np.int64) + offset)
        if "lows" in columns:
            wide = True
            lows.append(columns["lows"][band][first:last])
    return (
        np.concatenate(keys),
        np.concatenate(lows) if wide else None,
        np.concatenate(numbers),
    )


def best(groups: Int64, numbers: Int64, scores: Floats) -> Columns:
    """Of each group the best-scored item stays, the first of equals; the others are removed for it.

    `groups` names the group of each item.
    """
    order = np.lexsort((numbers, -scores, groups))
    groups, numbers = groups[order], numbers[order]
    leads = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])[: len(groups)])
    kept = np.repeat(numbers[leads], np.diff(np.append(leads, len(groups))))
    gone = np.flatnonzero(numbers != kept)
    gone = gone[np.argsort(numbers[gone], kind="stable")]
    return {"removed": numbers[gone], "kept": kept[gone]}
