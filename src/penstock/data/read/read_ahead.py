"""Read-ahead for remote datasets: the sample order is a formula, so the coming reads are known.

One thread goes through the coming batches and lists the blocks that they need; a few others fetch
these into the cache. The distance is a number of seconds at the measured pace of the reader. It
doubles whenever the reader had to wait, and never exceeds the process's share of the cache.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue

import numpy as np
import xxhash

from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.format.types import Positions
from penstock.data.store.cache import Cache

MIN_AHEAD_S = 10.0
MAX_AHEAD_S = 600.0
LOAD_AHEAD_S = 2.0
_MAX_LOADED = 256  # batches
_CLOSE_S = 2.0
_SHARE_EVERY_S = 5.0  # how often the number of other processes that plan ahead is read
_FIRST_BATCHES = 16  # planned while the pace is not known
_MAX_UNPLANNED = 1024  # remembered batches that were taken before they were planned


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One cache entry that a coming batch needs."""

    name: str  # of the entry in the cache
    bytes: int
    fetch: Callable[[], None]  # from the store into the cache
    load: Callable[[], None]  # from the cache into memory


@dataclass(slots=True)
class _PlannedBatch:
    key: int
    reads: list[PlannedRead]
    loaded: bool = False


class ReadAhead:
    """The threads that fetch the blocks of coming batches into the cache and into memory.

    `reads_of_batch` lists the entries that a batch needs; `count_misses` returns how often the
    reader has had to wait for the store so far.
    """

    def __init__(
        self,
        batches: Iterator[Positions],
        reads: Callable[[Positions], list[PlannedRead]],
        cache: Cache,
        count_misses: Callable[[], int],
        fetchers: int,
    ) -> None:
        self.ahead_s = MIN_AHEAD_S
        self._batches = batches
        self._reads_of_batch = reads
        self._cache = cache
        self._plan = cache.open_plan()
        self._count_misses = count_misses
        self._misses_before = count_misses()
        self._bytes = 0  # of the coming batches, each block counted once
        self._share_bytes, self._share_read_at = (
            cache.planned_share_bytes(self._plan, 0),
            time.monotonic(),
        )
        self._coming: deque[_PlannedBatch] = deque()
        # Key of a coming batch → how many batches came before it. A list, because the small part
        # of a mixture has the same batch again and again.
        self._places: dict[int, deque[int]] = {}
        self._forgotten = 0  # batches that were taken, or skipped
        self._unplanned: deque[int] = deque(maxlen=_MAX_UNPLANNED)
        self._needed: Counter[str] = Counter()  # entry → number of coming batches that need it
        self._taken_at: deque[float] = deque(maxlen=64)  # times of the last batches, s
        self._closing = False
        self._changed = threading.Condition()
        self._queue: SimpleQueue[PlannedRead | None] = SimpleQueue()
        work = [self._plan_batches, self._load_batches, *[self._fetch_blocks] * fetchers]
        self._threads = [
            threading.Thread(target=one, name=f"penstock-ahead-{n}", daemon=True)
            for n, one in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def batch_taken(self, starts: Positions) -> None:
        """Note that the reader has this batch. It may skip planned ones and read others."""
        key = _key(starts)
        with self._changed:
            if key in self._places:
                self._forget(self._places[key][0] + 1 - self._forgotten)
            else:
                self._unplanned.append(key)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # some may be waiting for a store that does not answer
            thread.join(max(0.0, until - time.monotonic()))
        self._plan.close()

    def _forget(self, count: int) -> None:
        for _ in range(count):
            batch = self._coming.popleft()
            self._places[batch.key].popleft()
            if not self._places[batch.key]:
                del self._places[batch.key]
            self._needed.subtract(read.name for read in batch.reads)
            unneeded = [read for read in batch.reads if not self._needed[read.name]]
            for read in unneeded:
                del self._needed[read.name]
            self._plan.remove(read.name for read in unneeded)
            self._bytes -= sum(read.bytes for read in unneeded)
        self._forgotten += count
        self._taken_at.append(time.monotonic())
        if self._count_misses() > self._misses_before:
            # Not for the first batches: there was no time to read ahead of them.
            if len(self._taken_at) > 2:
                self.ahead_s = min(2 * self.ahead_s, MAX_AHEAD_S)
            self._misses_before = self._count_misses()
        self._changed.notify_all()

    def _plan_batches(self) -> None:
        for starts in self._batches:
            reads, key = self._reads_of_batch(starts), _key(starts)
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self._far_enough())
                if self._closing:
                    return
                if not reads:
                    continue
                if key in self._unplanned:  # the reader was faster
                    self._unplanned.remove(key)
                    continue
                for read in reads:
                    self._add(read)
                if self._closing:
                    return
                self._places.setdefault(key, deque()).append(self._forgotten + len(self._coming))
                self._coming.append(_PlannedBatch(key, reads))
                self._changed.notify_all()

    def _load_batches(self) -> None:
        """Load and check the blocks of batches that come soon.

        A window begins with a batch of hundreds of new blocks, which would make the reader wait.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next_unloaded())
                batch = self._next_unloaded()
                if self._closing or not batch:
                    return
                batch.loaded = True
            for read in batch.reads:
                try:
                    read.load()
                except Exception:  # the reader will meet it and report it
                    continue

    def _next_unloaded(self) -> _PlannedBatch | None:
        soon = islice(self._coming, min(_MAX_LOADED, self._batches_in(LOAD_AHEAD_S)))
        return next((batch for batch in soon if not batch.loaded), None)

    def _far_enough(self) -> bool:
        """Return whether the plan reaches `ahead_s` seconds into the future."""
        return len(self._coming) >= max(2, self._batches_in(self.ahead_s))

    def _batches_in(self, seconds: float) -> int:
        if len(self._taken_at) < 3:
            return _FIRST_BATCHES
        return int(
            (len(self._taken_at) - 1) / max(1e-6, self._taken_at[-1] - self._taken_at[0]) * seconds
        )

    def _add(self, read: PlannedRead) -> None:
        """Plan one read; wait for space first. A batch can need hundreds of new blocks."""
        if read.name not in self._needed:
            self._changed.wait_for(lambda: self._closing or self._fits(read))
            if self._closing:
                return
            # Under the lock of the cache: an entry that is there now will not be removed.
            try:
                with self._cache.space.locked():
                    self._plan.add([read.name])
            except OSError:  # the folder is gone, so there is nothing to protect from removal
                self._plan.add([read.name])
            self._bytes += read.bytes
            self._queue.put(read)
        self._needed[read.name] += 1

    def _fits(self, read: PlannedRead) -> bool:
        if not self._plan.free_slots:
            return False
        if time.monotonic() - self._share_read_at > _SHARE_EVERY_S:
            share = self._cache.planned_share_bytes(self._plan, self._bytes)
            self._share_bytes, self._share_read_at = share, time.monotonic()
        # If no batch is planned, the reader waits for this one: it is needed, whatever its size.
        return self._bytes + read.bytes <= self._share_bytes or not self._coming

    def _fetch_blocks(self) -> None:
        while read := self._queue.get():
            if self._closing:
                return
            try:
                read.fetch()
            except Exception:
                # The reader will meet the error at the batch that needs the block, and report it.
                # Every error: if fetch threads ended unnoticed, the run would slow down bit by bit.
                continue


def _key(starts: Positions) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(starts, dtype=np.int64).tobytes())


def block_bytes(block: int, total: int) -> int:
    return min(BLOCK_BYTES, total - block * BLOCK_BYTES)
