"""A file of named arrays: complete or absent, on disk or in an object store.

On disk a file is memory-mapped; of an object only what is asked for is fetched.
"""

import json
import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.data.store.object_path import ObjectPath, location
from penstock.errors import PenstockError
from penstock.files import process_name, sync

Columns = dict[str, npt.NDArray[Any]]

_MAGIC = b"PENSTOCK COLUMNS 1\n"
_ALIGN = 64  # bytes
_INDEX, _INDEX_STEP = ".index", 32  # suffix of index columns; entries from one to the next
_START_BYTES = 16 << 10  # first read of an object: the header, and all of a small file


def temporary_path(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return path.with_name(f".writing-{path.name}.{process_name()}")


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the file and sync it; a process killed meanwhile leaves no file of that name."""
    arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
    header = json.dumps({name: (a.dtype.str, a.shape) for name, a in arrays.items()}).encode()
    pieces: list[Any] = [_MAGIC + len(header).to_bytes(8, "little") + header]
    size = len(pieces[0])
    for array in arrays.values():
        gap = -size % _ALIGN
        pieces += [b"\0" * gap, array.data.cast("B") if array.size else b""]
        size += gap + array.nbytes
    if isinstance(path, ObjectPath):
        path.write_bytes(b"".join(pieces))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_path(path).open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    temporary_path(path).replace(path)
    sync(path.parent)


def read_columns(path: Path, *names: str) -> Columns:
    """Return all columns, or the named ones: memory-mapped, or fetched together."""
    return ColumnFile(path).read(*names)


def with_index(columns: Columns, name: str) -> Columns:
    """Return the columns and an index of a sorted one, for `ColumnFile.find`."""
    return {f"{name}{_INDEX}": columns[name][..., ::_INDEX_STEP], **columns}


def _search(column: npt.NDArray[Any], value: int) -> int:
    """Return how many entries are less than a value, which may be beyond the column's type."""
    if value > np.iinfo(column.dtype).max:
        return len(column)
    return int(np.searchsorted(column, column.dtype.type(value)))


class _Column(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: int  # of its first byte in the file

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class ColumnFile:
    """A file of columns of which parts can be read. The header is read when it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = b""  # of an object: bytes that came with the header

    @cached_property
    def columns(self) -> dict[str, _Column]:
        if isinstance(self.path, ObjectPath):
            self._start, size = self.path.store.get_start(self.path.key, _START_BYTES)
            begin = len(_MAGIC) + 8
            end = begin + self._header_bytes(self._start[:begin])
            if end > len(self._start):
                self._start = bytes(self.path.store.get_range(self.path.key, 0, end))
            header = self._start[begin:end]
        else:
            with self.path.open("rb") as file:
                header = file.read(self._header_bytes(file.read(len(_MAGIC) + 8)))
                end = file.tell()
                size = os.fstat(file.fileno()).st_size
        found: dict[str, _Column] = {}
        for name, (kind, shape) in json.loads(header).items():
            end += -end % _ALIGN
            column = _Column(np.dtype(kind), tuple(shape), end)
            end += column.bytes
            if end > size:
                raise self._damaged(f"column {name!r} ends at byte {end} of {size}")
            found[name] = column
        return found

    def rows(self, name: str) -> int:
        """Return the length of a column."""
        return self.columns[name].shape[0]

    def read(self, *names: str) -> Columns:
        """Return all columns, or the named ones that there are."""
        wanted = {
            name: column for name, column in self.columns.items() if not names or name in names
        }
        if not isinstance(self.path, ObjectPath):
            return {name: self._mapped(column) for name, column in wanted.items()}
        spans = [(one.place, one.place + one.bytes) for one in wanted.values()]
        found = zip(wanted.items(), self._fetched(spans), strict=True)
        return {
            name: np.frombuffer(content, column.dtype).reshape(column.shape)
            for (name, column), content in found
        }

    def cut(self, first: int, last: int, *names: str, row: int | None = None) -> Columns:
        """Return column[first:last] of each name, or column[row][first:last]."""
        if not isinstance(self.path, ObjectPath):
            mapped = {name: self._mapped(self.columns[name]) for name in names}
            return {
                name: column[first:last] if row is None else column[row][first:last]
                for name, column in mapped.items()
            }
        spans, shapes = [], []
        for name in names:
            column = self.columns[name]
            inner = column.shape[1:] if row is None else column.shape[2:]
            width = math.prod(inner) * column.dtype.itemsize
            start = column.place + (0 if row is None else row * column.shape[1] * width)
            spans.append((start + first * width, start + last * width))
            shapes.append((last - first, *inner))
        return {
            name: np.frombuffer(content, self.columns[name].dtype).reshape(shape)
            for name, shape, content in zip(names, shapes, self._fetched(spans), strict=True)
        }

    def find(
        self, name: str, low: int, high: int, *others: str, row: int | None = None
    ) -> tuple[int, Columns]:
        """Return the entries of a sorted column in [low, high), and those of `others` beside them.

        Also the number of entries before them. The column was written by `with_index`, which
        saves reading all of it.
        """
        size = self.columns[name].shape[-1]
        first, last = 0, size
        if isinstance(self.path, ObjectPath):
            count = self.columns[f"{name}{_INDEX}"].shape[-1]
            index = self.cut(0, count, f"{name}{_INDEX}", row=row)[f"{name}{_INDEX}"]
            first = max(0, _search(index, low) - 1) * _INDEX_STEP
            last = min(size, _search(index, high) * _INDEX_STEP)
            last = max(first, last)
        found = self.cut(first, last, name, *others, row=row)
        begin, end = _search(found[name], low), _search(found[name], high)
        return first + begin, {one: column[begin:end] for one, column in found.items()}

    def _mapped(self, column: _Column) -> npt.NDArray[Any]:
        if not column.bytes:
            return np.empty(column.shape, column.dtype)
        return np.memmap(self.path, column.dtype, "r", column.place, column.shape)

    def _fetched(self, spans: list[tuple[int, int]]) -> list[memoryview]:
        """Return ranges of an object; those that came with the header are not fetched again."""
        assert isinstance(self.path, ObjectPath)
        here = memoryview(self._start)
        far = [span for span in spans if span[1] > len(here) and span[1] > span[0]]
        fetched = iter(self.path.store.get_ranges(self.path.key, far) if far else [])
        return [
            next(fetched) if stop > len(here) and stop > start else here[start:stop]
            for start, stop in spans
        ]

    def _header_bytes(self, begin: bytes) -> int:
        if begin[: len(_MAGIC)] != _MAGIC:
            raise self._damaged("it does not begin with the right header")
        return int.from_bytes(begin[len(_MAGIC) :], "little")

    def _damaged(self, why: str) -> PenstockError:
        return PenstockError(
            f"{location(self.path)} is not a complete file of columns: {why}. Delete it and run "
            "again."
        )
