"""What each process is about to read, where the others can see it: it must not be removed.

A plan is a file with a table of hashed names. It counts while its process holds the lock on it, so
the plan of a killed process ends with the process.
"""

import fcntl
import mmap
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
    """One process's future. Only its owner writes it.

    On a full disk it is the owner's alone: the run goes on, and others may remove what it needs.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = None
        self._table = np.zeros(SLOTS, "<u8")
        with suppress(OSError):
            self._path, self._handle = _locked_file(folder)
            # Room for all of it at once: a page that finds none when written to ends the process.
            os.posix_fallocate(self._handle, 0, 8 * SLOTS)
            self._table = np.frombuffer(mmap.mmap(self._handle, 8 * SLOTS), "<u8")
        self._slots: dict[str, int] = {}
        self._free = list(range(SLOTS - 1, -1, -1))

    @property
    def room(self) -> int:
        """Names that can still be added."""
        return len(self._free)

    def __len__(self) -> int:
        return len(self._slots)

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
        if self._path:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._path = None


def _locked_file(folder: Path) -> tuple[Path, int]:
    """A new file that we hold. Who looks for the living may find it before it is locked, and
    remove it: then another one."""
    while True:
        path = folder / uuid.uuid4().hex
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists():
            return path, handle
        os.close(handle)


class Names:
    """Names known by their hashes."""

    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __contains__(self, name: str) -> bool:
        return hashed(name) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)


def hashed(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def planned(folder: Path) -> Names:
    """Every name in the plan of a living process."""
    return names_in(living(folder))


def names_in(plans: Iterable[Path]) -> Names:
    hashes: set[int] = set()
    for path in plans:
        with suppress(FileNotFoundError):
            table = np.fromfile(path, "<u8")
            hashes.update(table[table != _FREE].tolist())
    return Names(hashes)


def living(folder: Path) -> list[Path]:
    """The plans of processes that are alive; those of dead ones are removed."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
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
