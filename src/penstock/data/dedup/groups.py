"""Groups of items with equal keys, found in bounded memory.

Each part of the corpus spills its keys to a file, sorted, so a slice of the key space is one short
range of each file. One slice of all parts is merged in memory at a time. The number of slices grows
with the corpus, so that a slice holds about `SLICE_ITEMS` items. An item is a document or a line;
items are numbered through all parts in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import U64, Int64
from penstock.data.format.columns import Columns, read_columns

SLICE_ITEMS = 1 << 22  # about 250 MB while a slice is merged
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SpilledParts:
    """The files that the parts were spilled to."""

    paths: tuple[Path, ...]
    offsets: tuple[int, ...]  # number of the first item of each part, then the number of all items

    @staticmethod
    def open(paths: Sequence[Path]) -> "SpilledParts":
        sizes = [len(read_columns(path, "scores")["scores"]) for path in paths]
        return SpilledParts(tuple(paths), tuple(int(n) for n in np.cumsum([0, *sizes])))

    @property
    def items(self) -> int:
        return self.offsets[-1]

    def slice_count(self, slice_items: int) -> int:
        """Return the number of slices: a power of two, so that a slice is a prefix of key bits."""
        return 1 << max(0, (-(-self.items // slice_items) - 1).bit_length())

    def gather(self, name: str, numbers: Int64) -> npt.NDArray[Any]:
        """Return a column's entries for these items, which may be in any order."""
        shape, dtype = (0,), np.dtype(np.float64)
        if self.paths:
            first = read_columns(self.paths[0], name)[name]
            shape, dtype = first.shape, first.dtype
        out = np.empty((len(numbers), *shape[1:]), dtype)
        part_of = np.searchsorted(self.offsets, numbers, side="right") - 1
        for part in np.unique(part_of):
            inside = np.flatnonzero(part_of == part)
            column = read_columns(self.paths[part], name)[name]
            out[inside] = column[numbers[inside] - self.offsets[part]]
        return out


def spill_columns(
    keys: U64, scores: npt.ArrayLike, lows: U64 | None = None, items: Int64 | None = None
) -> Columns:
    """Return the columns of a part: its (bands, items) keys with each band sorted, and its scores.

    `lows` extends the keys to 128 bits. `items` lists the items that have keys, if not all do;
    every item has a score.
    """
    if items is None:
        items = np.arange(keys.shape[1])
    order = np.argsort(keys, axis=1, kind="stable")
    columns: Columns = {
        "keys": np.take_along_axis(keys, order, axis=1),
        "items": items[order].astype(np.uint32),
        # An item without a score ranks last.
        "scores": np.nan_to_num(
            np.asarray(scores, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf
        ),
    }
    if lows is not None:
        columns["lows"] = np.take_along_axis(lows, order, axis=1)
    return columns


def find_groups(parts: SpilledParts, band: int, piece: int, slices: int) -> tuple[Int64, Int64]:
    """Return the numbers of all items of a slice that share a key, and where each group begins.

    Groups follow each other; numbers rise within a group.
    """
    keys, lows, numbers = _load_slice(parts, band, piece, slices)
    # The sort is stable and the parts come in order, so numbers stay in order within a key.
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


def _load_slice(
    parts: SpilledParts, band: int, piece: int, slices: int
) -> tuple[U64, U64 | None, Int64]:
    width = (1 << 64) // slices
    keys, lows, numbers = (
        [np.empty(0, np.uint64)],
        [np.empty(0, np.uint64)],
        [np.empty(0, np.int64)],
    )
    wide = False
    for path, offset in zip(parts.paths, parts.offsets, strict=False):
        columns = read_columns(path, "keys", "lows", "items")
        band_keys = columns["keys"][band]
        first = int(np.searchsorted(band_keys, np.uint64(piece * width)))
        last = len(band_keys)
        if piece + 1 < slices:
            last = int(np.searchsorted(band_keys, np.uint64((piece + 1) * width)))
        keys.append(band_keys[first:last])
        numbers.append(columns["items"][band][first:last].astype(np.int64) + offset)
        if "lows" in columns:
            wide = True
            lows.append(columns["lows"][band][first:last])
    return (
        np.concatenate(keys),
        np.concatenate(lows) if wide else None,
        np.concatenate(numbers),
    )


def keep_best(groups: Int64, numbers: Int64, scores: Floats) -> Columns:
    """Keep the best item of each group and return the columns `removed` and `kept`.

    `groups` is the group of each item. Among equal scores the first item is kept.
    """
    order = np.lexsort((numbers, -scores, groups))
    groups, numbers = groups[order], numbers[order]
    leads = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])[: len(groups)])
    kept = np.repeat(numbers[leads], np.diff(np.append(leads, len(groups))))
    gone = np.flatnonzero(numbers != kept)
    gone = gone[np.argsort(numbers[gone], kind="stable")]
    return {"removed": numbers[gone], "kept": kept[gone]}
