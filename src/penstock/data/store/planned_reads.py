"""Lists of the cache entries that each process will read soon; nobody removes those.

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


class PlannedReads:
    """The entries that one process will read soon. Only that process writes it.

    On a full disk the plan stays in memory: the run goes on, but other processes may remove
    entries that it needs.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = None
        self._table = np.zeros(SLOTS, "<u8")
        with suppress(OSError):
            self._path, self._handle = _locked_file(folder)
            # All disk space at once: a page without space kills the process when it is written.
            os.posix_fallocate(self._handle, 0, 8 * SLOTS)
            self._table = np.frombuffer(mmap.mmap(self._handle, 8 * SLOTS), "<u8")
        self._slots: dict[str, int] = {}
        self._free = list(range(SLOTS - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        """Number of names that can still be added."""
        return len(self._free)

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            slot = self._free.pop()
            self._slots[name] = slot
            self._table[slot] = name_hash(name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove names that were read and are not needed again soon."""
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
    """Create a file and lock it. `live_plans` of another process may see it before it is locked
    and remove it; then create another one."""
    while True:
        path = folder / uuid.uuid4().hex
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists():
            return path, handle
        os.close(handle)


class HashedNames:
    """A set of names of which only the hashes are stored."""

    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __contains__(self, name: str) -> bool:
        return name_hash(name) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)


def name_hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def all_planned(folder: Path) -> HashedNames:
    """Return every name in the plan of a live process."""
    return names_in(live_plans(folder))


def names_in(plans: Iterable[Path]) -> HashedNames:
    """Return the names that are in any of the plans."""
    hashes: set[int] = set()
    for path in plans:
        with suppress(FileNotFoundError):
            table = np.fromfile(path, "<u8")
            hashes.update(table[table != _FREE].tolist())
    return HashedNames(hashes)


def live_plans(folder: Path) -> list[Path]:
    """Return the plans of processes that are alive; remove those of dead ones."""
    plans = []
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
            plans.append(path)
        finally:
            os.close(handle)
    return plans
