import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.order import SHUFFLE_NAME, ShuffleOrder

seeds = st.integers(min_value=0, max_value=2**63)


def index(positions, samples, seed):
    return ShuffleOrder(samples, seed).index(positions)


def test_the_vectors_of_feistel_1_never_change():
    assert SHUFFLE_NAME == "feistel-1"
    vectors = [
        (1, 0, [0, 1, 2], [0, 0, 0]),
        (5, 0, range(10), [0, 2, 4, 1, 3, 3, 0, 2, 1, 4]),
        (1000, 7, [0, 1, 2, 999, 1000, 1001], [759, 311, 300, 952, 447, 234]),
        (
            10**12,
            1,
            [0, 1, 10**12 - 1, 10**12, 10**15],
            [694751539769, 401977823732, 953159111791, 550723420236, 779806748298],
        ),
        (2**40 + 1, 2**70, [0, 2**40, 2**41], [497608505088, 460806620515, 309186526924]),
        (2**62, -3, [0, 2**62 - 1], [2666910292485651083, 3515123630089279135]),
    ]
    for samples, seed, positions, expected in vectors:
        assert index(np.array(positions), samples, seed).tolist() == expected


@settings(deadline=None)
@given(samples=st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 10**6))
def test_each_sample_comes_once_in_each_epoch(samples, seed, epoch):
    positions = np.arange(epoch * samples, (epoch + 1) * samples)
    assert np.array_equal(np.sort(index(positions, samples, seed)), np.arange(samples))


@settings(deadline=None)
@given(
    samples=st.integers(1, 50),
    seed=seeds,
    positions=st.lists(st.integers(0, 10**15), min_size=1, max_size=40),
)
def test_a_position_means_the_same_alone_and_in_any_batch(samples, seed, positions):
    together = index(np.array(positions), samples, seed)
    alone = [int(index(np.array([position]), samples, seed)[0]) for position in positions]
    assert together.tolist() == alone


@settings(deadline=None)
@given(samples=st.integers(50, 10**12), seed=seeds)
def test_seeds_and_epochs_differ(samples, seed):
    positions = np.arange(50)
    first = index(positions, samples, seed)
    assert not np.array_equal(first, index(positions, samples, seed + 1))
    assert not np.array_equal(first, index(positions + samples, samples, seed))


def test_neighbours_do_not_hang_together():
    """Chi-square over a 16 × 16 grid of (sample, next sample): 255 degrees of freedom."""
    samples = 100_003
    order = index(np.arange(samples), samples, seed=3)
    cell = order * 16 // samples
    seen = np.bincount(cell[:-1] * 16 + cell[1:], minlength=256)
    expected = (samples - 1) / 256
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert 150 < chi_square < 380  # outside about once in 10**6 for a random order
    steps = np.bincount((np.diff(order) % samples) * 64 // samples, minlength=64)
    expected = (samples - 1) / 64
    assert float(((steps - expected) ** 2 / expected).sum()) < 140


@pytest.mark.parametrize("samples", [3, 5, 8])
def test_a_handful_of_samples_is_shuffled_too(samples):
    """Over many epochs, each ordered pair of first samples is as frequent as any other."""
    firsts = index(np.arange(3000 * samples).reshape(3000, samples)[:, :2], samples, seed=0)
    pairs = np.bincount(firsts[:, 0] * samples + firsts[:, 1], minlength=samples**2)
    pairs = pairs[~np.eye(samples, dtype=bool).ravel()]
    expected = 3000 / len(pairs)
    free = len(pairs) - 1
    chi_square = float(((pairs - expected) ** 2 / expected).sum())
    assert chi_square < free + 5 * np.sqrt(2 * free)


def test_a_trillion_samples_need_no_memory():
    index(np.arange(8), 10**12, seed=0)
    tracemalloc.start()
    found = index(np.arange(10**12, 10**12 + 8), 10**12, seed=0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(found.tolist())) == 8
    assert peak_bytes < 100_000


def test_shapes_are_kept_and_nonsense_is_refused():
    assert index(np.arange(6).reshape(2, 3), 10, 0).shape == (2, 3)
    assert index(np.array([], dtype=np.int64), 10, 0).shape == (0,)
    with pytest.raises(ValueError, match="found 0"):
        index(np.arange(3), 0, 0)
    with pytest.raises(ValueError, match="found -1"):
        index(np.array([-1]), 5, 0)
