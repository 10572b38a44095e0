"""Says now and then how well a rank is fed: batches that wait, and how fast they are read."""

from dataclasses import dataclass

from penstock.data.read.feed import Feed
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import now
from penstock.train.parallel.batch import Loaded

EVERY_S = 10.0


@dataclass
class Feeding:
    """One rank speaks for all: each reads as much. `tokens` are those of a sample, times ranks."""

    journal: Journal
    speaks: bool
    tokens: int
    _feed: Feed[Loaded] | None = None
    _since: float = 0.0
    _consumed: int = 0
    _read: int = 0
    _reading_s: float = 0.0

    def tell(self, feed: Feed[Loaded]) -> None:
        """A line `feed`: rates since the last one. `could_tokens_per_s` is the reader's speed while
        it reads, the most that the run could use."""
        if not self.speaks:
            return
        spent = now() - self._since
        if feed is self._feed and spent < EVERY_S:
            return
        if feed is self._feed:
            reading_s = feed.reading_s - self._reading_s
            read = (feed.read - self._read) * self.tokens
            self.journal.event(
                "feed",
                synced=False,
                ready=feed.ready,
                capacity=feed.depth,
                tokens_per_s=round((feed.consumed - self._consumed) * self.tokens / spent),
                could_tokens_per_s=round(read / reading_s) if reading_s > 0 else None,
            )
        self._feed, self._since = feed, now()
        self._consumed, self._read, self._reading_s = feed.consumed, feed.read, feed.reading_s
