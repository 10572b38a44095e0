"""Reads ahead of the training loop on a thread, so that the next batch is a queue pop.

Only the reading runs ahead: `consumed` moves when a batch is handed out, and the batches come in
the order of their ranges whatever the thread's timing. A reader may do more than read: on this
thread a batch also starts on its way to an accelerator, while the one before it is trained on.
"""

import itertools
import threading
import time
from collections.abc import Sized
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from penstock.data.read.stream import Locked, Ranges

Read = TypeVar("Read", bound=Sized, covariant=True)
Given = TypeVar("Given", bound=Sized)


class Reader(Protocol[Read]):
    """A `Stream`, or what stands before one."""

    def read(self, start: int, stop: int) -> Read: ...

    def plan_ahead(self, ranges: Ranges) -> None: ...


class Feed(Generic[Given]):
    """At most `depth` batches wait in memory.

    An error while reading is raised by the `next` that would have returned its batch. After the
    last range `next` raises StopIteration.
    """

    def __init__(self, stream: Reader[Given], ranges: Ranges, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, found {depth}")
        self.consumed = 0  # samples handed out
        self.depth = depth
        self.read, self.reading_s = 0, 0.0  # samples that were read, and how long that took
        self._stream = stream
        shared = threading.Lock()
        mine, theirs = (Locked(copy, shared) for copy in itertools.tee(ranges))
        self._ranges = mine
        self._room = threading.Semaphore(depth)
        self._ready: SimpleQueue[Given | BaseException] = SimpleQueue()
        self._closing = False
        stream.plan_ahead(theirs)
        self._thread = threading.Thread(target=self._read_ahead, name="penstock-feed", daemon=True)
        self._thread.start()

    def next(self) -> Given:
        """The batch of the next range."""
        if self._closing:
            raise RuntimeError("the feed is closed")
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)  # stays the answer: nothing comes after it
            raise item
        self._room.release()
        self.consumed += len(item)
        return item

    @property
    def ready(self) -> int:
        """Batches that wait to be handed out."""
        return min(self._ready.qsize(), self.depth)

    def close(self) -> None:
        """Ends the thread and waits for it; what was read ahead is dropped."""
        self._closing = True
        self._room.release()
        self._thread.join()

    def _read_ahead(self) -> None:
        try:
            for start, stop in self._ranges:
                self._room.acquire()
                if self._closing:
                    raise RuntimeError("the feed is closed")
                began = time.perf_counter()
                batch = self._stream.read(start, stop)
                self.reading_s += time.perf_counter() - began
                self.read += len(batch)
                self._ready.put(batch)
            self._ready.put(StopIteration("the ranges of this feed have ended"))
        except BaseException as error:
            # All of them: a caller of `next` must never wait for a thread that is dead.
            self._ready.put(error)
