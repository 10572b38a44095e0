"""What each process is about to read, where the others can see it: it must not be removed.

A plan is a file with a table of hashed names. It counts while its process holds the lock on it, so
the plan of a killed process ends with the process.
"""

import fcntl
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

SLOTS = 1 << 16  # names: 64 GiB of blocks
_FREE = 0


class Plan:
    """One process's future. Only its owner writes it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / uuid.uuid4().hex
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        os.ftruncate(self._handle, 8 * SLOTS)
        self._table = np.memmap(self._path, "<u8", "r+")
        self._slots: dict[str, int] = {}
        self._free = list(range(SLOTS - 1, -1, -1))

    @property
    def room(self) -> int:
        """Names that can still be added."""
        return len(self._free)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            slot = self._free.pop()
            self._slots[name] = slot
            self._table[slot] = hashed(name)

    def drop(self, names: Iterable[str]) -> None:
        """They were read, and are not needed again soon."""
        for name in names:
            slot = self._slots.pop(name)
            self._table[slot] = _FREE
            self._free.append(slot)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._handle)


class Names:
    """Names known by their hashes."""

    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __contains__(self, name: str) -> bool:
        return hashed(name) in self._hashes


def hashed(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def planned(folder: Path) -> Names:
    """Every name in the plan of a living process."""
    hashes: set[int] = set()
    for path in living(folder):
        with suppress(FileNotFoundError):
            table = np.fromfile(path, "<u8")
            hashes.update(table[table != _FREE].tolist())
    return Names(hashes)


def living(folder: Path) -> list[Path]:
    """The plans of processes that are alive; those of dead ones are removed."""
    found = []
    for path in folder.iterdir():
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                path.unlink()
        except BlockingIOError:
            found.append(path)
        finally:
            os.close(handle)
    return found
