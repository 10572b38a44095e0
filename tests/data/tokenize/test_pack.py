"""Packing: nothing lost, nothing twice, nothing cut needlessly; borders are no targets."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.tokenize.pack import PackedBins, lay_out_bins, pack_documents

LENGTHS = st.lists(st.integers(0, 70), max_size=60)
SEQUENCE = st.integers(1, 40)
END = 9999


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, sequence=SEQUENCE)
def test_every_token_has_one_place(lengths: list[int], sequence: int) -> None:
    bins = pack_documents(lengths, sequence)
    seen = [set() for _ in lengths]
    for document, offset, length in zip(bins.documents, bins.offsets, bins.lengths, strict=True):
        places = set(range(offset, offset + length))
        assert places
        assert not places & seen[document]
        seen[document] |= places
    assert [len(one) for one in seen] == lengths
    assert all(max(one, default=-1) == size - 1 for one, size in zip(seen, lengths, strict=True))
    loads = [bins.lengths[a:b].sum() for a, b in pairwise(bins.starts)]
    assert all(0 < load <= sequence for load in loads)
    # Cut only where it must be, into full bins and a rest.
    counts = np.bincount(bins.documents, minlength=len(lengths))
    assert counts.tolist() == [-(-length // sequence) for length in lengths]


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, sequence=SEQUENCE)
def test_best_fit_leaves_no_two_bins_that_fit_into_one(lengths: list[int], sequence: int) -> None:
    bins = pack_documents(lengths, sequence)
    loads = sorted(bins.lengths[a:b].sum() for a, b in pairwise(bins.starts))
    if len(loads) > 1:
        assert loads[0] + loads[1] > sequence


def expected(
    masks: list[np.ndarray], bins: PackedBins, sequence: int
) -> tuple[list[int], list[bool], list[int]]:
    """The slow way, a piece at a time."""
    tokens, mask, starts = [], [], []
    for b in range(len(bins)):
        row, bits = [], []
        for p in range(bins.starts[b], bins.starts[b + 1]):
            document, offset = bins.documents[p], bins.offsets[p]
            starts.append(b * sequence + len(row))
            row += [document * 100 + offset + k for k in range(bins.lengths[p])]
            bits += masks[document][offset : offset + bins.lengths[p]].tolist()
        bits[0] = False
        tokens += row + [END] * (sequence - len(row))
        mask += bits + [False] * (sequence - len(bits))
    return tokens, mask, starts


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, sequence=SEQUENCE, seed=st.integers(0, 99), masked=st.booleans())
def test_the_layout(lengths: list[int], sequence: int, seed: int, masked: bool) -> None:
    bins = pack_documents(lengths, sequence)
    rng = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    tokens = np.concatenate(
        [np.empty(0), *(d * 100 + np.arange(n) for d, n in enumerate(lengths))]
    ).astype("<u2")
    mask = rng.random(len(tokens)) < 0.5 if masked else None
    split = np.ones(len(tokens), bool) if mask is None else mask
    masks = [split[a:b] for a, b in pairwise(starts)]
    laid = lay_out_bins(tokens, starts, mask, bins, END, sequence)
    want = expected(masks, bins, sequence)
    assert (laid.tokens.tolist(), laid.mask.tolist(), laid.starts.tolist()) == want
    assert laid.tokens.dtype == tokens.dtype
    assert not laid.mask[::sequence].any()  # what stands before it is another bin
    assert laid.documents.tolist() == bins.documents.tolist()


def realistic(count: int) -> np.ndarray:
    """Lengths of documents have a long tail."""
    rng = np.random.default_rng(1)
    return np.maximum(1, rng.lognormal(6.3, 1.1, count)).astype(int)


@pytest.mark.parametrize("sequence", [512, 2048, 8192])
def test_bins_are_full(sequence: int) -> None:
    lengths = realistic(5000)
    bins = pack_documents(lengths, sequence)
    assert lengths.sum() / (len(bins) * sequence) > 0.99


def test_the_tail_is_a_fair_sample() -> None:
    lengths = realistic(20_000)
    bins = pack_documents(lengths, 2048)
    pieces = np.diff(bins.starts)  # few in the bins of long documents
    tail = pieces[-len(pieces) // 10 :].mean()
    assert abs(tail - pieces.mean()) < 0.1 * pieces.mean()


def test_the_packing_never_changes() -> None:
    bins = pack_documents([3, 10, 1, 4, 2, 5], 5)
    found = [
        [(int(bins.documents[p]), int(bins.offsets[p])) for p in range(a, b)]
        for a, b in pairwise(bins.starts)
    ]
    assert found == [[(5, 0)], [(0, 0), (4, 0)], [(1, 5)], [(1, 0)], [(3, 0), (2, 0)]]
    assert len(pack_documents([], 5)) == len(pack_documents([0, 0], 5)) == 0
    with pytest.raises(ValueError, match="at least 1"):
        pack_documents([1], 0)
