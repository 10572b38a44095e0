"""Groups of items with equal keys, found in bounded memory.

Each part of the corpus spills its keys to a file, sorted, so a slice of the key space is one short
range of each file. One slice of all parts is merged in memory at a time. The number of slices grows
with the corpus, so that a slice holds about `SLICE_ITEMS` items. An item is a document or a line;
items are numbered through all parts in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import U64, Int64
from penstock.data.format.columns import ColumnFile, Columns, read_columns, with_index
from penstock.data.store.object_path import map_places

SLICE_ITEMS = 1 << 22  # about 250 MB while a slice is merged
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SpilledParts:
    """The files that the parts were spilled to."""

    paths: tuple[Path, ...]
    offsets: tuple[int, ...]  # number of the first item of each part, then the number of all items
    # Large sets only: for each band the files with the merged keys of several parts (`runs.py`).
    runs: tuple[tuple[Path, ...], ...] = ()
    run_offsets: tuple[int, ...] = ()  # number of the first item of each run

    @staticmethod
    def open(paths: Sequence[Path]) -> "SpilledParts":
        like = paths[0] if paths else None
        sizes = map_places(lambda path: ColumnFile(path).rows("scores"), paths, like)
        return SpilledParts(tuple(paths), tuple(int(n) for n in np.cumsum([0, *sizes])))

    @property
    def like(self) -> Path | None:
        """Return one of the paths, which says where all of them are."""
        return self.paths[0] if self.paths else None

    @property
    def items(self) -> int:
        return self.offsets[-1]

    def key_files(self, band: int) -> tuple[Sequence[Path], Sequence[int], int]:
        """Return the files with the keys of a band, their first items, and its row in them."""
        if self.runs:
            return self.runs[band], self.run_offsets, 0
        return self.paths, self.offsets[:-1], band

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

        def fill(part: int, inside: Int64) -> None:
            column = read_columns(self.paths[part], name)[name]
            out[inside] = column[numbers[inside] - self.offsets[part]]

        list(map_places(lambda one: fill(*one), _by_part(part_of), self.like))
        return out


def spill_columns(
    keys: U64,
    scores: npt.ArrayLike,
    lows: U64 | None = None,
    items: Int64 | None = None,
    carried: npt.NDArray[Any] | None = None,
) -> Columns:
    """Return the columns of a part: its (bands, items) keys with each band sorted, and its scores.

    `lows` extends the keys to 128 bits. `items` lists the items that have keys, if not all do;
    every item has a score. `carried` has a row for each item, which is stored beside each of its
    keys: more room, but whoever finds a key has it without asking the item's part.
    """
    if items is None:
        items = np.arange(keys.shape[1])
    order = np.argsort(keys, axis=1, kind="stable")
    columns: Columns = {
        "keys": np.take_along_axis(keys, order, axis=1),
        "items": items[order].astype(np.uint32),
        "scores": rank_scores(scores),
    }
    if lows is not None:
        columns["lows"] = np.take_along_axis(lows, order, axis=1)
    if carried is not None:
        columns["carried"] = carried[columns["items"]]
    return with_index(columns, "keys")


class Groups(NamedTuple):
    """Items of a slice that share a key. Groups follow each other; numbers rise within a group."""

    members: Int64  # numbers of the items
    firsts: Int64  # where each group begins
    carried: npt.NDArray[Any] | None  # a row for each member, where the parts carry rows


def find_groups(parts: SpilledParts, band: int, piece: int, slices: int) -> Groups:
    """Return all items of a slice that share a key with another."""
    found, carries = _load_slice(parts, band, piece, slices)
    keys, lows = found["keys"], found.get("lows")
    # The sort is stable and the parts come in order, so numbers stay in order within a key.
    order = np.argsort(keys, kind="stable") if lows is None else np.lexsort((lows, keys))
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    if lows is not None:
        lows = lows[order]
        same &= lows[1:] == lows[:-1]
    follows = np.concatenate([[False], same])
    shared = follows | np.concatenate([same, [False]]) if len(keys) else follows[:0]
    picked = order[shared]
    return Groups(
        found["numbers"][picked],
        np.flatnonzero(~follows[: len(keys)][shared]),
        _carried(parts, band, found["part"][picked], found["place"][picked]) if carries else None,
    )


def _load_slice(parts: SpilledParts, band: int, piece: int, slices: int) -> tuple[Columns, bool]:
    """Return the keys of a slice from all parts, with their items, and whether rows are carried.

    `part` and `place` say where each key was found.
    """
    width = (1 << 64) // slices
    paths, offsets, row = parts.key_files(band)
    empty: Columns = {"keys": np.empty(0, np.uint64), "numbers": np.empty(0, np.int64)}
    empty |= {"part": np.empty(0, np.int64), "place": np.empty(0, np.int64)}

    def load(number: int) -> tuple[Columns, bool]:
        file = ColumnFile(paths[number])
        others = [name for name in ("items", "lows") if name in file.columns]
        first, found = file.find("keys", piece * width, (piece + 1) * width, *others, row=row)
        found["numbers"] = found.pop("items").astype(np.int64) + offsets[number]
        found["part"] = np.full(len(found["keys"]), number)
        found["place"] = np.arange(first, first + len(found["keys"]))
        return found, "carried" in file.columns

    loaded = list(map_places(load, range(len(paths)), parts.like))
    names = loaded[0][0] if loaded else empty
    columns = [columns for columns, _ in loaded] or [empty]
    joined = {name: np.concatenate([one[name] for one in columns]) for name in names}
    return joined, any(carries for _, carries in loaded)


def _carried(parts: SpilledParts, band: int, part: Int64, place: Int64) -> npt.NDArray[Any]:
    """Return the rows that are stored beside these keys; keys may be in any order."""
    paths, _, row = parts.key_files(band)
    column = ColumnFile(paths[0]).columns["carried"]
    out = np.empty((len(part), *column.shape[2:]), column.dtype)

    def fill(number: int, inside: Int64) -> None:
        first, last = int(place[inside].min()), int(place[inside].max()) + 1
        rows = ColumnFile(paths[number]).cut(first, last, "carried", row=row)["carried"]
        out[inside] = rows[place[inside] - first]

    list(map_places(lambda one: fill(*one), _by_part(part), parts.like))
    return out


def _by_part(part: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each part that occurs and where it does."""
    order = np.argsort(part, kind="stable")
    parts, firsts = np.unique(part[order], return_index=True)
    return zip(parts.tolist(), np.split(order, firsts[1:]), strict=False)


def rank_scores(scores: npt.ArrayLike) -> Floats:
    """Return the scores with those that are missing ranked last."""
    plain = np.asarray(scores, np.float64)
    return np.nan_to_num(plain, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


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
    return with_index({"removed": numbers[gone], "kept": kept[gone]}, "removed")
