"""A file of named arrays: complete or absent, and memory-mapped, so unused parts are not read."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.files import sync

Columns = dict[str, npt.NDArray[Any]]

_MAGIC = b"PENSTOCK COLUMNS 1\n"
_ALIGN = 64  # bytes


def temporary_path(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return path.with_name(f".writing-{path.name}.{os.getpid()}")


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the file and sync it; a process killed meanwhile leaves no file of that name."""
    arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
    header = json.dumps({name: (a.dtype.str, a.shape) for name, a in arrays.items()}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_path(path).open("wb") as file:
        file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(b"\0" * (-file.tell() % _ALIGN))
            file.write(array.data if array.size else b"")
        file.flush()
        os.fsync(file.fileno())
    temporary_path(path).replace(path)
    sync(path.parent)


def read_columns(path: Path, *names: str) -> Columns:
    """Return all columns, or the named ones, memory-mapped."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _damaged(path, "it does not begin with the right header")
        shapes = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        place = file.tell()
        size = os.fstat(file.fileno()).st_size
    columns: Columns = {}
    for name, (kind, shape) in shapes.items():
        dtype = np.dtype(kind)
        place += -place % _ALIGN
        length = int(np.prod(shape)) * dtype.itemsize
        if place + length > size:
            raise _damaged(path, f"column {name!r} ends at byte {place + length} of {size}")
        if names and name not in names:
            pass
        elif length:
            columns[name] = np.memmap(path, dtype, "r", place, tuple(shape))
        else:
            columns[name] = np.empty(shape, dtype)
        place += length
    return columns


def _damaged(path: Path, why: str) -> PenstockError:
    return PenstockError(
        f"{path} is not a complete file of columns: {why}. Delete it and run again."
    )
