"""Reading ahead of a training run: the order of samples is a formula, so the future is known.

One thread walks through the coming batches and lists the blocks that they need first; a few others
bring them into the cache. How far ahead is measured: a number of seconds at the pace at which the
reader takes its batches, doubled whenever it had to wait all the same, and never more bytes than
the process's share of the cache.
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

LEAST_S = 10.0
MOST_S = 600.0
WARM_S = 2.0
_MOST_WARM = 256  # batches
_CLOSE_S = 2.0
_SHARE_S = 5.0  # how often it is looked up who else plans ahead
_FIRST_BATCHES = 16  # while the pace is not known
_REMEMBERED = 1024  # batches that were taken before they were planned, or never will be


@dataclass(frozen=True, slots=True)
class Want:
    name: str  # in the cache
    bytes: int
    bring: Callable[[], None]  # into the cache
    warm: Callable[[], None]  # from the cache into memory


@dataclass(slots=True)
class _Batch:
    key: int
    wants: list[Want]
    warm: bool = False


class Ahead:
    def __init__(
        self,
        batches: Iterator[Positions],
        wants: Callable[[Positions], list[Want]],
        cache: Cache,
        misses: Callable[[], int],
        fetchers: int,
    ) -> None:
        self.ahead_s = LEAST_S
        self._batches = batches
        self._wants = wants
        self._cache = cache
        self._plan = cache.plan()
        self._misses = misses
        self._missed = misses()
        self._bytes = 0  # that the coming batches need, each block counted once
        self._share, self._shared = cache.planned_share(self._plan, 0), time.monotonic()
        self._coming: deque[_Batch] = deque()
        # Key of a coming batch → how many came before it: the small part of a mixture has the same
        # batch again and again.
        self._places: dict[int, deque[int]] = {}
        self._passed = 0  # batches
        self._surprises: deque[int] = deque(maxlen=_REMEMBERED)
        self._needed: Counter[str] = Counter()  # by how many of them
        self._took: deque[float] = deque(maxlen=64)  # when the last batches were taken
        self._closing = False
        self._change = threading.Condition()
        self._queue: SimpleQueue[Want | None] = SimpleQueue()
        work = [self._walk, self._warm, *[self._bring] * fetchers]
        self._threads = [
            threading.Thread(target=one, name=f"penstock-ahead-{n}", daemon=True)
            for n, one in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def took(self, starts: Positions) -> None:
        """The reader has these crops now. It may skip some, and read others in between."""
        key = _key(starts)
        with self._change:
            if key in self._places:
                self._pass(self._places[key][0] + 1 - self._passed)
            else:
                self._surprises.append(key)

    def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # some may be waiting for a store that is away
            thread.join(max(0.0, until - time.monotonic()))
        self._plan.close()

    def _pass(self, count: int) -> None:
        for _ in range(count):
            batch = self._coming.popleft()
            self._places[batch.key].popleft()
            if not self._places[batch.key]:
                del self._places[batch.key]
            self._needed.subtract(want.name for want in batch.wants)
            done = [want for want in batch.wants if not self._needed[want.name]]
            for want in done:
                del self._needed[want.name]
            self._plan.drop(want.name for want in done)
            self._bytes -= sum(want.bytes for want in done)
        self._passed += count
        self._took.append(time.monotonic())
        if self._misses() > self._missed:
            # Not for the first batches: nobody could have been ahead of them.
            if len(self._took) > 2:
                self.ahead_s = min(2 * self.ahead_s, MOST_S)
            self._missed = self._misses()
        self._change.notify_all()

    def _walk(self) -> None:
        for starts in self._batches:
            wants, key = self._wants(starts), _key(starts)
            with self._change:
                self._change.wait_for(lambda: self._closing or not self._far_enough())
                if self._closing:
                    return
                if not wants:
                    continue
                if key in self._surprises:  # the reader was faster
                    self._surprises.remove(key)
                    continue
                for want in wants:
                    self._add(want)
                if self._closing:
                    return
                self._places.setdefault(key, deque()).append(self._passed + len(self._coming))
                self._coming.append(_Batch(key, wants))
                self._change.notify_all()

    def _warm(self) -> None:
        """A window begins with a batch of hundreds of new blocks: they are read and checked before
        it is asked for."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closing or self._next_cold())
                batch = self._next_cold()
                if self._closing or not batch:
                    return
                batch.warm = True
            for want in batch.wants:
                try:
                    want.warm()
                except Exception:  # the reader will meet it
                    continue

    def _next_cold(self) -> _Batch | None:
        soon = islice(self._coming, min(_MOST_WARM, self._batches_in(WARM_S)))
        return next((batch for batch in soon if not batch.warm), None)

    def _far_enough(self) -> bool:
        """Whether the plan reaches as far as it should in time."""
        return len(self._coming) >= max(2, self._batches_in(self.ahead_s))

    def _batches_in(self, seconds: float) -> int:
        if len(self._took) < 3:
            return _FIRST_BATCHES
        return int((len(self._took) - 1) / max(1e-6, self._took[-1] - self._took[0]) * seconds)

    def _add(self, want: Want) -> None:
        """Waits for room: one block at a time, since a batch can need hundreds that are new."""
        if want.name not in self._needed:
            self._change.wait_for(lambda: self._closing or self._fits(want))
            if self._closing:
                return
            # Under the lock of the cache: what is there now is not removed from here on.
            try:
                with self._cache.room.locked():
                    self._plan.add([want.name])
            except OSError:  # the folder is gone, and with it all that could be removed
                self._plan.add([want.name])
            self._bytes += want.bytes
            self._queue.put(want)
        self._needed[want.name] += 1

    def _fits(self, want: Want) -> bool:
        if not self._plan.room:
            return False
        if time.monotonic() - self._shared > _SHARE_S:
            share = self._cache.planned_share(self._plan, self._bytes)
            self._share, self._shared = share, time.monotonic()
        # Without a batch to come, the reader is at this one: it is needed, whatever it weighs.
        return self._bytes + want.bytes <= self._share or not self._coming

    def _bring(self) -> None:
        while want := self._queue.get():
            if self._closing:
                return
            try:
                want.bring()
            except Exception:
                # The reader will meet it, at the batch that needs it, and say so. Whatever it is:
                # a fetcher that ends is missed by nobody, and the run gets slower and slower.
                continue


def _key(starts: Positions) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(starts, dtype=np.int64).tobytes())


def block_bytes(block: int, total: int) -> int:
    return min(BLOCK_BYTES, total - block * BLOCK_BYTES)
