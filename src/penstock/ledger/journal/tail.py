"""New bytes of an append-only file since the last read.

A file that was replaced by another of the same name is read anew. Nothing is ever written.
"""

import os
from pathlib import Path

from penstock.errors import PenstockError
from penstock.ledger.journal.records import HEADER, check_header
from penstock.untrusted import open_plain

MARK_BYTES = 64  # before the place that was read up to: in another file they would be others


class FileTail:
    """The bytes of one file, each of them returned once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self._seen: tuple[int, int, int] | None = None
        self._mark = b""

    def unread(self, stat: os.stat_result) -> int:
        """Return how many bytes there are to read."""
        return max(0, stat.st_size - self.read_bytes) if self._state(stat) != self._seen else 0

    def read_new(self, stat: os.stat_result) -> tuple[bool, bytes]:
        """Return whether the file was replaced, and its new bytes."""
        state = self._state(stat)
        if state == self._seen:
            return False, b""
        try:
            with open_plain(self.path, buffering=0) as file:
                anew = not self._goes_on(file.fileno(), state)
                if anew:
                    self.read_bytes, self._mark = 0, b""
                file.seek(self.read_bytes)
                found = file.read()
        except FileNotFoundError:
            return True, b""
        self._seen = state
        return anew, found

    def consume(self, found: bytes, count: int) -> None:
        """Mark `count` bytes of the last `read_new` as used; the others come again next time."""
        if count < len(found):
            self._seen = None
        self.read_bytes += count
        self._mark = (self._mark + found[max(0, count - MARK_BYTES) : count])[-MARK_BYTES:]

    def forget_state(self) -> None:
        """Make the next `read_new` return the same bytes again, since this is no such file."""
        self._seen = None

    def _goes_on(self, file: int, state: tuple[int, int, int]) -> bool:
        if self._seen is not None and state[0] != self._seen[0]:
            return False
        at = self.read_bytes - len(self._mark)
        return os.pread(file, len(self._mark), at) == self._mark

    @staticmethod
    def _state(stat: os.stat_result) -> tuple[int, int, int]:
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_first_bytes(tail: FileTail, found: bytes, kind: str) -> None:
    """Raise PenstockError if the first bytes are no header of this kind, on every read."""
    try:
        check_header(found[: HEADER.size], kind, tail.path)
    except PenstockError:
        tail.forget_state()
        raise
