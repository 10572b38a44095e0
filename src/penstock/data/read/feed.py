"""A thread that reads batches ahead of the training loop, so that the next batch is a queue pop.

Only the reading runs ahead: `consumed` counts batches that were handed out, and the batches come in
the order of their ranges whatever the timing of the thread. The source may do more than read: this
thread also starts the copy of a batch to the accelerator while the batch before it is trained on.
"""

import itertools
import threading
import time
from collections.abc import Sized
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from penstock.data.read.stream import LockedIterator, Ranges

ReadBatch = TypeVar("ReadBatch", bound=Sized, covariant=True)
AnyBatch = TypeVar("AnyBatch", bound=Sized)


class BatchSource(Protocol[ReadBatch]):
    """A `Stream`, or a wrapper around one."""

    def read(self, start: int, stop: int) -> ReadBatch: ...

    def plan_ahead(self, ranges: Ranges) -> None: ...


class Feed(Generic[AnyBatch]):
    """A queue of at most `depth` batches that a thread fills.

    The `next` that would have returned a batch raises the error of its read. After the last range
    `next` raises StopIteration.
    """

    def __init__(self, source: BatchSource[AnyBatch], ranges: Ranges, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, found {depth}")
        self.consumed = 0  # samples handed out
        self.depth = depth
        self.read, self.reading_s = 0, 0.0  # samples read so far, and the time that took
        self._source = source
        shared = threading.Lock()
        mine, theirs = (LockedIterator(copy, shared) for copy in itertools.tee(ranges))
        self._ranges = mine
        self._free_slots = threading.Semaphore(depth)
        self._ready: SimpleQueue[AnyBatch | BaseException] = SimpleQueue()
        self._closing = False
        source.plan_ahead(theirs)
        self._thread = threading.Thread(target=self._read_ahead, name="penstock-feed", daemon=True)
        self._thread.start()

    def next(self) -> AnyBatch:
        """Return the batch of the next range."""
        if self._closing:
            raise RuntimeError("the feed is closed")
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)  # every later call gets it too: nothing comes after it
            raise item
        self._free_slots.release()
        self.consumed += len(item)
        return item

    @property
    def ready(self) -> int:
        """Number of batches that wait to be handed out."""
        return min(self._ready.qsize(), self.depth)

    def close(self) -> None:
        """End the thread and wait for it; drop the batches that were read ahead."""
        self._closing = True
        self._free_slots.release()
        self._thread.join()

    def _read_ahead(self) -> None:
        try:
            for start, stop in self._ranges:
                self._free_slots.acquire()
                if self._closing:
                    raise RuntimeError("the feed is closed")
                began = time.perf_counter()
                batch = self._source.read(start, stop)
                self.reading_s += time.perf_counter() - began
                self.read += len(batch)
                self._ready.put(batch)
            self._ready.put(StopIteration("the ranges of this feed have ended"))
        except BaseException as error:
            # Every error: a caller of `next` must never wait for a dead thread.
            self._ready.put(error)
