"""Records of one growing file, all in memory: a curve, or the steps of one rank."""

import os
from pathlib import Path

import numpy as np

from penstock.ledger.journal.records import DTYPE, HEADER
from penstock.ledger.journal.tail import FileTail, check_first_bytes


class RecordsFollower:
    """A growing file of records. A result of `read` never changes: new records are put behind
    it."""

    def __init__(self, path: Path, kind: str) -> None:
        self._tail, self._kind = FileTail(path), kind
        self._buffer = np.empty(0, DTYPE[kind])
        self._count = 0

    def read(self, stat: os.stat_result) -> np.ndarray:
        """Read the new records; return all records so far."""
        anew, found = self._tail.read_new(stat)
        if anew:
            self._buffer, self._count = np.empty(0, DTYPE[self._kind]), 0
        skip = 0 if self._tail.read_bytes else HEADER.size
        if len(found) < skip:
            self._tail.consume(found, 0)
            return self._buffer[:0]
        if skip:
            check_first_bytes(self._tail, found, self._kind)
        size = DTYPE[self._kind].itemsize
        records = np.frombuffer(found, DTYPE[self._kind], (len(found) - skip) // size, offset=skip)
        self._tail.consume(found, skip + len(records) * size)
        self._append(records)
        return self._buffer[: self._count]

    def _append(self, records: np.ndarray) -> None:
        count = self._count + len(records)
        if count > len(self._buffer):
            larger = np.empty(max(count, 2 * len(self._buffer)), self._buffer.dtype)
            larger[: self._count] = self._buffer[: self._count]
            self._buffer = larger
        self._buffer[self._count : count] = records
        self._count = count
