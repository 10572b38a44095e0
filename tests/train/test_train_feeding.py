"""The line that says how well a rank is fed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.data.read.feed import Feed
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.writer import Journal
from penstock.train import batches
from penstock.train.batches import FeedMeter


def lines(folder: Path) -> list[dict[str, Any]]:
    events = read_events(folder / "a0000-r00000.events")
    return [event.payload for event in events if event.kind == "feed"]


def test_rates_are_those_since_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 100.0
    monkeypatch.setattr(batches, "now", lambda: at)
    feed: Any = SimpleNamespace(ready=1, depth=2, consumed=0, read=0, reading_s=0.0)
    tells = FeedMeter(Journal(tmp_path, 0), records=True, tokens=100)
    tells.record(feed)  # the first look
    at, feed.consumed, feed.read, feed.reading_s = 105.0, 40, 50, 1.0
    tells.record(feed)  # too soon
    assert lines(tmp_path) == []
    at, feed.consumed, feed.read, feed.reading_s = 110.0, 80, 100, 2.0
    tells.record(feed)
    assert lines(tmp_path) == [
        {"ready": 1, "capacity": 2, "tokens_per_s": 800, "could_tokens_per_s": 5000}
    ]
    at, feed.consumed = 120.0, 90
    tells.record(feed)
    assert lines(tmp_path)[1:] == [
        {"ready": 1, "capacity": 2, "tokens_per_s": 100, "could_tokens_per_s": None}
    ]
    at = 130.0
    tells.record(SimpleNamespace(**vars(feed)))  # type: ignore[arg-type]  # after a rollback
    assert len(lines(tmp_path)) == 2


def test_one_rank_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0.0
    monkeypatch.setattr(batches, "now", lambda: at)
    feed: Any = SimpleNamespace(ready=1, depth=2, consumed=0, read=0, reading_s=0.0)
    tells = FeedMeter(Journal(tmp_path, 0), records=False, tokens=100)
    for _ in range(3):
        tells.record(feed)
        at += 20
    assert lines(tmp_path) == []


class Reader:
    def read(self, start: int, stop: int) -> range:
        return range(start, stop)

    def plan_ahead(self, ranges: object) -> None:
        pass


def test_a_feed_knows_what_it_read_and_holds() -> None:
    feed = Feed(Reader(), iter([(0, 3), (3, 7), (7, 8)]), depth=1)
    for _ in range(3):
        feed.next()
    feed.close()
    assert (feed.read, feed.consumed, feed.depth) == (8, 8, 1)
    assert feed.reading_s > 0
    assert 0 <= feed.ready <= 1
