import itertools
import threading

import numpy as np
import pytest

from penstock.data.read.feed import Feed
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError


@pytest.fixture
def stream(dataset) -> Stream:
    return Stream(dataset([np.arange(1000)]), 8, seed=1, holdout=0.0)


class Blind:
    """A reader that has no use for the future."""

    def plan_ahead(self, ranges):
        pass


def ranges(step: int):
    return ((start, start + step) for start in itertools.count(0, step))


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_batches_come_in_order_and_consumed_counts_what_was_handed_out(stream, depth):
    feed = Feed(stream, ranges(5), depth)
    assert feed.consumed == 0
    for step in range(40):
        expected = stream.read(step * 5, step * 5 + 5)
        assert np.array_equal(feed.next().tokens, expected.tokens)
        assert feed.consumed == (step + 1) * 5
    feed.close()
    assert feed.consumed == 200
    assert "penstock-feed" not in [thread.name for thread in threading.enumerate()]


def test_it_reads_ahead_by_depth_and_no_more(stream):
    ahead, room = [], threading.Semaphore(0)

    class Counting(Blind):
        def read(self, start, stop):
            ahead.append(start)
            room.release()
            return stream.read(start, stop)

    feed = Feed(Counting(), ranges(1), depth=3)
    for handed_out in range(1, 20):
        feed.next()
        assert len(ahead) <= handed_out + 3
    for _ in range(22):  # it does go on to fill the room it has: this ends
        assert room.acquire(timeout=30)
    feed.close()
    assert len(ahead) == 22


def test_the_end_of_the_ranges_ends_the_feed(stream):
    feed = Feed(stream, iter([(0, 2), (2, 3)]))
    assert [len(feed.next()), len(feed.next())] == [2, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            feed.next()
    feed.close()


def test_an_error_is_raised_at_its_batch_and_by_every_later_call(stream):
    class Failing(Blind):
        def read(self, start, stop):
            if start == 2:
                raise PenstockError("block 7 is damaged")
            return stream.read(start, stop)

    feed = Feed(Failing(), ranges(1))
    feed.next()
    feed.next()
    for _ in range(2):
        with pytest.raises(PenstockError, match="block 7 is damaged"):
            feed.next()
    assert feed.consumed == 2
    feed.close()


def test_close_ends_a_waiting_thread_and_can_be_called_again(stream):
    feed = Feed(stream, ranges(1))
    feed.close()
    feed.close()
    with pytest.raises(RuntimeError, match="closed"):
        feed.next()
    with pytest.raises(ValueError, match="depth"):
        Feed(stream, ranges(1), depth=0)
