"""The bound of a shared cache: how many bytes it holds, and what has to go to make room.

Processes agree through files alone. The count lives in one small file under a lock. Room is taken
by a file of the right size before anything is written into it, so the bound also holds for what is
on its way. A writer holds a lock on that file; one that nobody holds was left by a dead process.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.data.store.cache_plan import planned

_SLACK = 20  # a sweep frees one part in so many beyond what is needed: sweeps look at every file


class Room:
    """Use from any thread: each use of the lock opens it anew."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._blocks = folder / "blocks"
        self._writing = folder / "writing"
        self._plans = folder / "plans"
        self._count = folder / "bytes"
        for made in (self._blocks, self._writing, self._plans):
            made.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Nobody else takes or frees room meanwhile; gives the file with the count."""
        handle = os.open(self._count, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def used(self) -> int:
        with self.locked() as handle:
            return _read(handle) or 0

    @contextmanager
    def take(self, size: int) -> Iterator[tuple[int, Path] | None]:
        """A file of `size` bytes to write into and to rename away; None when there is no room."""
        path = self._writing / uuid.uuid4().hex
        with self.locked() as handle:
            used = _read(handle)
            if used is None or used + size > self.most_bytes:
                used = self._sweep(size)
            if used + size > self.most_bytes:
                _write(handle, used)
                yield None
                return
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.ftruncate(file, size)
                _write(handle, used + size)
            except OSError:  # a full disk
                path.unlink()
                os.close(file)
                raise
        try:
            yield file, path
        finally:
            with suppress(FileNotFoundError):  # it was renamed: its room stays taken
                path.unlink()
                self.give_back(size)
            os.close(file)

    def give_back(self, size: int) -> None:
        with self.locked() as handle:
            used = _read(handle)
            if used is not None:
                _write(handle, max(0, used - size))

    def _sweep(self, size: int) -> int:
        """Counts what is really there, and removes what was used longest ago and is not planned."""
        total = sum(_living(path) for path in self._writing.iterdir())
        found = []
        for folder in self._blocks.iterdir():
            with suppress(NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        continue  # nothing of ours
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        total += stat.st_size
                        found.append((stat.st_mtime_ns, stat.st_size, entry.path, entry.name))
        keep = planned(self._plans)
        room = self.most_bytes - size - self.most_bytes // _SLACK
        for _, bytes_, path, name in sorted(found):
            if total <= room:
                break
            if name not in keep:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= bytes_
        return total


def _living(path: Path) -> int:
    """The bytes of a file that is being written; one left by a dead process is removed."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            path.unlink()
        return 0
    except BlockingIOError:
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _read(handle: int) -> int | None:
    """None where nobody has counted: a new cache, or one whose count was lost."""
    found = os.pread(handle, 8, 0)
    return int.from_bytes(found, "little") if len(found) == 8 else None


def _write(handle: int, used: int) -> None:
    os.pwrite(handle, used.to_bytes(8, "little"), 0)
