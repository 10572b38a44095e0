"""The size limit of a shared cache: how many bytes it holds, and which entries to remove.

Processes agree through files alone. The byte count is in one small file under a lock. A writer
reserves space with a file of the right size before it writes into it, so the limit also holds for
entries that are being written. It holds a lock on that file; a file without a holder was left by
a dead process.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.data.store.planned_reads import all_planned

_SLACK = 20  # a sweep frees 1/20 more than is needed, because it has to visit every file


class CacheSpace:
    """The space of one cache folder. Safe from any thread: each use opens the lock file anew."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._blocks = folder / "blocks"
        self._writing = folder / "writing"
        self._plans = folder / "plans"
        self._count = folder / "bytes"
        for path in (self._blocks, self._writing, self._plans):
            path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock on the byte count; yield the handle of its file."""
        handle = os.open(self._count, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def used_bytes(self) -> int:
        with self.locked() as handle:
            return _read(handle) or 0

    @contextmanager
    def reserve(self, size: int) -> Iterator[tuple[int, Path] | None]:
        """Yield a file of `size` bytes to write and rename; None if there is no space.

        A file that was not renamed is removed at the end.
        """
        path = self._writing / uuid.uuid4().hex
        with self.locked() as handle:
            used = _read(handle)
            if used is None or used + size > self.max_bytes:
                used = self._sweep(size)
            if used + size > self.max_bytes:
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
            with suppress(FileNotFoundError):  # it was renamed: its space stays in use
                path.unlink()
                self.release(size)
            os.close(file)

    def release(self, size: int) -> None:
        """Subtract the bytes of a removed entry from the count."""
        with self.locked() as handle:
            used = _read(handle)
            if used is not None:
                _write(handle, max(0, used - size))

    def _sweep(self, size: int) -> int:
        """Count the bytes on disk and remove the least recently used entries nobody plans to read.

        Returns the bytes that are left.
        """
        total = sum(_live_bytes(path) for path in self._writing.iterdir())
        entries_by_age = []
        for folder in self._blocks.iterdir():
            with suppress(NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        continue  # not written by a cache
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        total += stat.st_size
                        entries_by_age.append(
                            (stat.st_mtime_ns, stat.st_size, entry.path, entry.name)
                        )
        keep = all_planned(self._plans)
        target = self.max_bytes - size - self.max_bytes // _SLACK
        for _, bytes_, path, name in sorted(entries_by_age):
            if total <= target:
                break
            if name not in keep:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= bytes_
        return total


def _live_bytes(path: Path) -> int:
    """Return the bytes of a file that is being written; remove one that a dead process left."""
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
    """Return the byte count; None for a new cache, or one that lost its count."""
    count = os.pread(handle, 8, 0)
    return int.from_bytes(count, "little") if len(count) == 8 else None


def _write(handle: int, used: int) -> None:
    os.pwrite(handle, used.to_bytes(8, "little"), 0)
