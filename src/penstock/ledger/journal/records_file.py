"""The records of one file that grows, all of them in memory: a curve, or the steps of one rank."""

import os
from pathlib import Path

import numpy as np

from penstock.ledger.journal.records import DTYPE, HEADER
from penstock.ledger.journal.tail import Tail, check_start


class Grown:
    """What `read` has given stays as it is: the buffer is only written behind it, or replaced."""

    def __init__(self, path: Path, kind: str) -> None:
        self._tail, self._kind = Tail(path), kind
        self._buffer = np.empty(0, DTYPE[kind])
        self._count = 0

    def read(self, stat: os.stat_result) -> np.ndarray:
        anew, found = self._tail.more(stat)
        if anew:
            self._buffer, self._count = np.empty(0, DTYPE[self._kind]), 0
        skip = 0 if self._tail.read_bytes else HEADER.size
        if len(found) < skip:
            self._tail.take(found, 0)
            return self._buffer[:0]
        if skip:
            check_start(self._tail, found, self._kind)
        size = DTYPE[self._kind].itemsize
        records = np.frombuffer(found, DTYPE[self._kind], (len(found) - skip) // size, offset=skip)
        self._tail.take(found, skip + len(records) * size)
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
