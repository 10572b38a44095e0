"""What a file has gained since it was looked at last: a journal is only ever appended to.

A file that was replaced by another of the same name is read anew; nothing is ever written.
"""

import os
from pathlib import Path

from penstock.errors import PenstockError
from penstock.ledger.journal.records import HEADER, check_header
from penstock.untrusted import open_plain

MARK_BYTES = 64  # before the place that was read up to: in another file they would be others


class Tail:
    """The bytes of one file, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self._seen: tuple[int, int, int] | None = None
        self._mark = b""

    def unread(self, stat: os.stat_result) -> int:
        """How many bytes there are to read."""
        return max(0, stat.st_size - self.read_bytes) if self._state(stat) != self._seen else 0

    def more(self, stat: os.stat_result) -> tuple[bool, bytes]:
        """Is it another file than before, and what it has gained."""
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

    def take(self, found: bytes, count: int) -> None:
        """`count` bytes of what `more` found were whole; the others come again next time."""
        if count < len(found):
            self._seen = None
        self.read_bytes += count
        self._mark = (self._mark + found[max(0, count - MARK_BYTES) : count])[-MARK_BYTES:]

    def refuse(self) -> None:
        """What `more` found is no such file: it comes again next time, to be refused again."""
        self._seen = None

    def _goes_on(self, file: int, state: tuple[int, int, int]) -> bool:
        if self._seen is not None and state[0] != self._seen[0]:
            return False
        at = self.read_bytes - len(self._mark)
        return os.pread(file, len(self._mark), at) == self._mark

    @staticmethod
    def _state(stat: os.stat_result) -> tuple[int, int, int]:
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_start(tail: Tail, found: bytes, kind: str) -> None:
    """Refuse a file whose first bytes are no header of its kind, each time that it is read."""
    try:
        check_header(found[: HEADER.size], kind, tail.path)
    except PenstockError:
        tail.refuse()
        raise
