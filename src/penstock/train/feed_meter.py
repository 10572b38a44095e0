"""How well a rank is fed: batches that wait, and how fast they are read. Recorded now and then."""

from dataclasses import dataclass

from penstock.data.read.feed import Feed
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import now
from penstock.train.parallel.batch import Loaded

EVERY_S = 10.0


@dataclass
class FeedMeter:
    """The read rates of a run. One rank records them for all, since each reads as much.

    `tokens` are those of a sample, times the data ranks.
    """

    journal: Journal
    records: bool  # whether this rank is the one that records
    tokens: int
    _feed: Feed[Loaded] | None = None
    _since: float = 0.0
    _consumed: int = 0
    _read: int = 0
    _reading_s: float = 0.0

    def record(self, feed: Feed[Loaded]) -> None:
        """Write an event `feed` every few seconds: the rates since the last one.

        `could_tokens_per_s` is the reader's speed while it reads: the most that the run could use.
        """
        if not self.records:
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
