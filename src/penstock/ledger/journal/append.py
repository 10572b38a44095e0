"""A file that is only appended to, and that a full disk cannot turn against its writer.

What cannot be written now is kept in memory and goes first as soon as something can: a run whose
disk is full or read-only for a while goes on, and its journal misses nothing.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

# What passes: somebody frees room, or mounts the disk again.
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
MOST_BYTES = 64 << 20  # kept for a disk that stays full; a rank writes some kilobytes a minute


class Appender:
    """`flags` are those of `os.open`, beside the ones for writing at the end."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path, self._flags = path, flags
        self._file: int | None = None
        self._kept = bytearray()
        # What saves beside the loop writes here too; and a handler of signals may come in between.
        self._lock = threading.RLock()
        with contextlib.suppress(_Later):
            self._open()

    def append(self, data: bytes, synced: bool = False) -> None:
        """In the file when it returns, and on the disk if `synced`; or kept for the next time."""
        try:
            with self._lock:
                self._kept += data
                file = self._flush()
            if synced:  # without the lock: others may write while a busy disk takes its time
                with _passing():
                    os.fsync(file)
        except _Later as full:
            if len(self._kept) > MOST_BYTES:
                raise OSError(full.error.errno, full.error.strerror, str(self.path)) from None

    def close(self) -> None:
        """Tries once more what was kept."""
        with self._lock, contextlib.suppress(_Later):
            self._flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _flush(self) -> int:
        file = self._open()
        data, self._kept = self._kept, bytearray()
        try:
            with _passing():
                # One write; the loop is for the rare short one, which would misalign the rest.
                while data:
                    del data[: os.write(file, data)]
        finally:
            self._kept = data + self._kept
        return file

    def _open(self) -> int:
        if self._file is None:
            with _passing():
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | self._flags
                self._file = os.open(self.path, flags, 0o644)
        assert self._file is not None
        return self._file

    def size(self) -> int:
        return os.fstat(self._file).st_size if self._file is not None else 0

    def close_line(self) -> None:
        """After a writer that was killed within a line."""
        size = self.size()
        if size and self._file is not None and os.pread(self._file, 1, size - 1) != b"\n":
            self.append(b"\n")

    def cut(self, size: int) -> None:
        """After a writer that was killed within a record."""
        if self._file is not None and size < self.size():
            os.ftruncate(self._file, size)


class _Later(Exception):
    def __init__(self, error: OSError) -> None:
        self.error = error


@contextlib.contextmanager
def _passing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        raise _Later(error) from None
