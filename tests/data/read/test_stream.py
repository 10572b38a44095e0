import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.data.read.stream import Stream, rank_slice
from penstock.errors import PenstockError

S = 4


@pytest.fixture
def stream(dataset) -> Stream:
    """101 samples that show their number, 10 held out, in shards that cut through samples."""
    return Stream(dataset([np.arange(101 * S + 3)], shard_bytes=142), S, seed=5, holdout=0.1)


def numbers(batch) -> list[int]:
    batch = batch.tokens
    assert np.array_equal(batch, batch[:, :1] + np.arange(S + 1))
    return (batch[:, 0] // S).tolist()


def test_samples_are_crops_with_one_token_more(stream):
    batch = stream.read(0, 7)
    assert batch.tokens.shape == (7, S + 1)
    assert batch.tokens.dtype == np.int64
    assert (batch.loss, batch.starts, batch.skipped) == (None, None, ())
    assert batch.counted == 7 * S
    assert len(set(numbers(batch))) == 7
    assert numbers(batch) != sorted(numbers(batch))
    assert stream.read(3, 3).tokens.shape == (0, S + 1)


def test_the_tail_is_held_out_and_the_rest_comes_once_an_epoch(stream):
    assert (stream.samples, stream.held_out) == (91, 10)
    for epoch in (0, 1, 10**10):
        order = numbers(stream.read(epoch * 91, epoch * 91 + 91))
        assert sorted(order) == list(range(91))
    assert numbers(stream.read_held_out(0, 10)) == list(range(91, 101))
    assert numbers(stream.read_held_out(2, 4)) == [93, 94]
    with pytest.raises(ValueError, match="within the 10 held-out"):
        stream.read_held_out(9, 11)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.integers(1, 40), start=st.integers(0, 10**12), data=st.data())
def test_ranks_may_come_and_go_without_a_sample_lost_or_doubled(stream, batch, start, data):
    """A step is [c, c + batch) whatever the ranks; each change of ranks resumes from the state."""
    consumed, seen = start, []
    for ranks in [1, 2, 4, 3, *data.draw(st.lists(st.integers(1, 50), max_size=3))]:
        state = json.loads(json.dumps(stream.state(consumed)))
        stream.check(state)
        consumed = state["consumed"]
        for _ in range(data.draw(st.integers(0, 3))):
            for rank in range(ranks):
                seen += numbers(stream.read(*rank_slice(consumed, consumed + batch, rank, ranks)))
            consumed += batch
    assert seen == numbers(stream.read(start, consumed))


@settings(deadline=None)
@given(
    start=st.integers(0, 10**15),
    count=st.integers(0, 10**6),
    ranks=st.integers(1, 300),
)
def test_rank_slices_cover_once_and_evenly(start, count, ranks):
    slices = [rank_slice(start, start + count, rank, ranks) for rank in range(ranks)]
    assert slices[0][0] == start
    assert slices[-1][1] == start + count
    assert all(one[1] == two[0] for one, two in itertools.pairwise(slices))
    sizes = [stop - begin for begin, stop in slices]
    assert max(sizes) - min(sizes) <= 1
    with pytest.raises(ValueError, match="is not one of"):
        rank_slice(start, start + count, ranks, ranks)


def test_the_state_is_small_and_another_order_is_refused(stream, dataset):
    state = stream.state(10**12)
    assert state["consumed"] == 10**12
    assert len(json.dumps(state)) < 1000
    stream.check(state)
    other = dataset([np.arange(101 * S + 2)])
    for changed, name in [
        (Stream(stream.dataset, S, seed=6, holdout=0.1), "seed: saved 5, here 6"),
        (Stream(stream.dataset, S, seed=5, holdout=0.0), "held_out: saved 10, here 0"),
        (Stream(stream.dataset, S + 1, seed=5, holdout=0.1), "sequence: saved 4, here 5"),
        (Stream(other, S, seed=5, holdout=0.1), f"here '{other.id}'"),
    ]:
        with pytest.raises(PenstockError, match=name):
            changed.check(state)
    with pytest.raises(PenstockError, match="order: saved 'feistel-0', here 'feistel-1'"):
        stream.check({**state, "order": "feistel-0"})
    for consumed in (-1, "7", None):
        with pytest.raises(PenstockError, match="saved position"):
            stream.check({**state, "consumed": consumed})


def test_a_dataset_that_is_too_small_is_refused_with_sizes(dataset):
    small = dataset([np.arange(9)])
    assert Stream(small, 4, seed=0, holdout=0.001).held_out == 1
    assert Stream(small, 8, seed=0, holdout=0.0).samples == 1
    with pytest.raises(PenstockError, match="9 tokens make 1 sample of 8 tokens, of which 1"):
        Stream(small, 8, seed=0, holdout=0.001)
    with pytest.raises(PenstockError, match="9 tokens make 0 samples of 9 tokens, and"):
        Stream(small, 9, seed=0, holdout=0.0)
    with pytest.raises(PenstockError, match="sequence is 0"):
        Stream(small, 0, seed=0, holdout=0.0)
    for holdout in (-0.1, 1.0):
        with pytest.raises(PenstockError, match="holdout is"):
            Stream(small, 4, seed=0, holdout=holdout)
    with pytest.raises(ValueError, match="not a range"):
        Stream(small, 4, seed=0, holdout=0.0).read(2, 1)


def test_a_selection_of_the_held_out_is_spread_over_all_of_it(dataset):
    stream = Stream(dataset([np.arange(1001)]), sequence=10, seed=0, holdout=0.4)
    assert stream.held_out == 40
    some = stream.read_held_out(0, 4, of=4).tokens
    assert some[:, 0].tolist() == [600, 700, 800, 900]
    halves = [stream.read_held_out(*part, of=7).tokens for part in ((0, 3), (3, 7))]
    assert (np.concatenate(halves) == stream.read_held_out(0, 7, of=7).tokens).all()
    with pytest.raises(ValueError, match="held-out"):
        stream.read_held_out(0, 41, of=41)
