"""Principle 2: the global batch is what the file says, however many ranks share it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.batch import Batch
from penstock.train.parallel.microbatch import Microbatch, RankShare, send_to_device

CPU = torch.device("cpu")
SEQUENCE = 5


def batch_of(start: int, stop: int) -> np.ndarray:
    """Samples that say who they are: position p holds p, p + 1, … in its tokens."""
    return np.arange(start, stop)[:, None] + np.arange(SEQUENCE + 1)[None, :]


def cut(start: int, stop: int, rank: int, ranks: int, microbatch: int) -> list[Microbatch]:
    share = RankShare.of(start, stop, rank, ranks, microbatch)
    mine = send_to_device(Batch(batch_of(share.start, share.stop)), CPU)
    return mine.micros(share.micros, microbatch)


BATCHES = (st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 12), st.integers(1, 9))


@given(*BATCHES)
@settings(max_examples=150, deadline=None)
def test_every_sample_exactly_once_over_all_ranks(
    start: int, count: int, ranks: int, microbatch: int
) -> None:
    seen: list[int] = []
    for rank in range(ranks):
        for micro in cut(start, start + count, rank, ranks, microbatch):
            assert micro.weight in (0.0, 1.0)
            if micro.weight:
                seen += micro.inputs_bs[:, 0].tolist()
    assert seen == list(range(start, start + count))  # in order, too


@given(*BATCHES)
@settings(max_examples=150, deadline=None)
def test_all_ranks_make_as_many_passes_as_the_busiest_needs(
    start: int, count: int, ranks: int, microbatch: int
) -> None:
    cuts = [cut(start, start + count, rank, ranks, microbatch) for rank in range(ranks)]
    assert len({len(micros_of_one) for micros_of_one in cuts}) == 1
    assert any(all(m.weight for m in micros_of_one) for micros_of_one in cuts)  # no pass too many
    largest = max(len(m.inputs_bs) for micros_of_one in cuts for m in micros_of_one)
    assert largest <= microbatch


@given(*BATCHES)
@settings(max_examples=100, deadline=None)
def test_the_weighted_sum_of_tokens_is_that_of_the_global_batch(
    start: int, count: int, ranks: int, microbatch: int
) -> None:
    """What the loss is divided by is what is summed: no rank or filler adds or loses a token."""
    total = 0.0
    for rank in range(ranks):
        for micro in cut(start, start + count, rank, ranks, microbatch):
            total += micro.weight * micro.targets_bs.numel()
    assert total == count * SEQUENCE


def test_inputs_and_targets_are_one_token_apart() -> None:
    (micro,) = cut(10, 12, 0, 1, 4)
    assert micro.inputs_bs.tolist() == [[10, 11, 12, 13, 14], [11, 12, 13, 14, 15]]
    assert micro.targets_bs.tolist() == [[11, 12, 13, 14, 15], [12, 13, 14, 15, 16]]


def test_a_rank_with_less_to_do_repeats_a_sample_with_no_weight() -> None:
    first, second = cut(0, 3, 0, 2, 1), cut(0, 3, 1, 2, 1)
    assert [m.weight for m in first] == [1.0, 0.0]
    assert [m.weight for m in second] == [1.0, 1.0]
    assert first[1].inputs_bs.tolist() == first[0].inputs_bs.tolist()


def test_a_rank_with_nothing_at_all_gets_a_blank_it_can_run() -> None:
    (blank,) = cut(0, 1, 0, 2, 3)
    assert blank.weight == 0.0
    assert blank.inputs_bs.shape == blank.targets_bs.shape == (1, SEQUENCE)
    assert blank.inputs_bs.dtype == torch.int64
    assert not blank.inputs_bs.any()
