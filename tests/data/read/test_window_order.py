"""`window-1`: every sample once an epoch, from few blocks at a time, by a formula."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.order import WINDOW_NAME, OrderLookup, ShuffleOrder, WindowOrder, distinct
from penstock.data.read.samples import choose_order

seeds = st.integers(min_value=0, max_value=2**63)
shapes = {"block": st.integers(1, 40), "span": st.integers(1, 9)}


def test_the_vectors_of_window_1_never_change():
    assert WINDOW_NAME == "window-1"
    vectors = [
        (WindowOrder(1, 0, 4, 2), [0, 1, 2], [0, 0, 0]),
        (WindowOrder(10, 0, 3, 2), range(20), VECTOR_10),
        (WindowOrder(1000, 7, 32, 4), [0, 1, 2, 999, 1000, 1001], VECTOR_1000),
        (WindowOrder(10**12, 1, 1024, 64), [0, 1, 10**12 - 1, 10**12, 10**15], VECTOR_LARGE),
    ]
    for order, positions, expected in vectors:
        assert order.index(np.array(positions)).tolist() == expected


VECTOR_10 = [3, 4, 5, 9, 1, 0, 2, 7, 6, 8, 4, 5, 3, 9, 6, 8, 0, 1, 2, 7]
VECTOR_1000 = [211, 836, 212, 340, 395, 226]
VECTOR_LARGE = [835991440207, 768115467177, 207165989051, 948124122245, 957478732510]


@settings(deadline=None, max_examples=200)
@given(samples=st.integers(1, 1500), seed=seeds, epoch=st.integers(0, 10**6), **shapes)
def test_each_sample_comes_once_in_each_epoch(samples, seed, epoch, block, span):
    order = WindowOrder(samples, seed, block, span)
    found = order.index(np.arange(epoch * samples, (epoch + 1) * samples))
    assert np.array_equal(np.sort(found), np.arange(samples))


@settings(deadline=None, max_examples=60)
@given(
    samples=st.integers(1, 300),
    seed=seeds,
    positions=st.lists(st.integers(0, 10**15), min_size=1, max_size=30),
    **shapes,
)
def test_a_position_means_the_same_alone_and_in_any_batch(samples, seed, positions, block, span):
    order = WindowOrder(samples, seed, block, span)
    alone = [int(order.index(position)) for position in positions]
    assert order.index(np.array(positions)).tolist() == alone


@settings(deadline=None, max_examples=60)
@given(samples=st.integers(1, 3000), seed=seeds, data=st.data(), **shapes)
def test_a_window_reads_its_own_blocks_and_none_else(samples, seed, data, block, span):
    """Positions of one window's length touch two windows of blocks; three where one is short."""
    order = WindowOrder(samples, seed, block, span)
    start = data.draw(st.integers(0, samples - 1))
    stop = min(samples, start + block * span)
    assert len(set((order.index(np.arange(start, stop)) // block).tolist())) <= 3 * span


def test_each_block_is_read_in_one_go():
    """Over an epoch every block has its reads close together: a small cache holds all of them."""
    order = WindowOrder(100_000, 3, block=100, span=8)
    found = order.index(np.arange(100_000)) // 100
    first, last = np.full(1000, 10**9), np.zeros(1000, dtype=int)
    np.minimum.at(first, found, np.arange(100_000))
    np.maximum.at(last, found, np.arange(100_000))
    assert (last - first).max() < 8 * 100
    # while the blocks themselves come from everywhere: neighbours do not follow each other.
    slots = found[np.sort(np.unique(found, return_index=True)[1])]
    assert np.mean(np.abs(np.diff(slots)) == 1) < 0.02


def test_seeds_and_epochs_and_windows_differ():
    order = WindowOrder(10_000, 3, block=10, span=10)
    first = order.index(np.arange(200))
    assert not np.array_equal(first, WindowOrder(10_000, 4, 10, 10).index(np.arange(200)))
    assert not np.array_equal(first, order.index(np.arange(10_000, 10_200)))
    # Two windows shuffle their hundred places in two ways.
    places = [np.argsort(np.argsort(first[:100])), np.argsort(np.argsort(first[100:]))]
    assert not np.array_equal(*places)


def test_samples_of_a_window_are_well_mixed():
    """Chi-square of (place in the window, block of the window) over many windows."""
    order = WindowOrder(64 * 16 * 500, 5, block=16, span=64)
    found = order.index(np.arange(order.samples)).reshape(500, 64 * 16)
    seen = np.zeros((16, 16))
    for window in found:
        rank = np.argsort(np.argsort(window))
        np.add.at(seen, (np.arange(1024) * 16 // 1024, rank * 16 // 1024), 1)
    expected = seen.sum() / 256
    assert 140 < float(((seen - expected) ** 2 / expected).sum()) < 330  # 225 degrees of freedom


def test_a_trillion_samples_need_no_memory():
    order = WindowOrder(10**12, 0, block=1024)
    order.index(np.arange(8))
    tracemalloc.start()
    found = order.index(np.arange(10**12, 10**12 + 8))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(found.tolist())) == 8
    assert peak_bytes < 100_000


def test_the_choice_of_an_order_depends_on_the_dataset_alone():
    small = choose_order("auto", 1 << 30, 4096, 1000, 0)
    assert small == ShuffleOrder(1000, 0)
    assert choose_order("auto", (1 << 30) + 1, 4096, 1000, 0) == WindowOrder(
        1000, 0, block=4096, span=16
    )
    assert choose_order("window", 10, 4096, 1000, 0).name == "window-1/4096x16"
    assert choose_order("shuffle", 1 << 50, 4096, 1000, 0).name == "feistel-1"
    assert choose_order("window", 10, 1 << 30, 1000, 0) == WindowOrder(1000, 0, block=1)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 6000)), max_size=5))
def test_looking_many_up_at_once_changes_nothing(asked):
    lookup = OrderLookup(WindowOrder(7000, 2, block=10, span=30))
    for start, count in asked:
        expected = lookup.order.index(np.arange(start, start + count))
        assert np.array_equal(lookup.index(start, start + count), expected)


class Counting:
    """Notes how many positions it was asked for."""

    name, samples = "counting", 10**9

    def __init__(self) -> None:
        self.asked: list[int] = []

    def index(self, positions):
        self.asked.append(len(positions))
        return ShuffleOrder(self.samples, 0).index(positions)


def test_a_resume_looks_few_up_and_a_run_many_at_once():
    order = Counting()
    lookup = OrderLookup(order, stride=3)
    # One rank of four: what the others read lies between.
    for start in range(5000, 5000 + 32 * 1000, 32):
        expected = 3 * ShuffleOrder(10**9, 0).index(np.arange(start, start + 8))
        assert np.array_equal(lookup.index(start, start + 8), expected)
    assert order.asked[:3] == [64, 512, 4096]
    assert set(order.asked[3:]) == {4096}
    assert len(order.asked) == 10
    assert len(lookup.index(0, 9000)) == order.asked[-1] == 9000
    with pytest.raises(ValueError, match="read-only"):
        lookup.index(0, 8)[0] = 1  # it is kept for the next who asks


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=30))
def test_distinct_values_are_those_of_numpy(values):
    assert distinct(np.array(values, dtype=np.uint64)).tolist() == sorted(set(values))


def test_the_first_lookup_of_a_process_imports_nothing():
    """Masked arrays, which `np.unique` brings in, cost more than all of a resume."""
    code = """
import sys, numpy
from penstock.data.read.order import ShuffleOrder
from penstock.data.read.order import OrderLookup
from penstock.data.read.order import WindowOrder
before = set(sys.modules)
for order in (ShuffleOrder(10**12, 0), WindowOrder(10**12, 0, 1024)):
    OrderLookup(order).index(10**12 - 5, 10**12 + 5)
sys.exit(f"imported {sorted(set(sys.modules) - before)}" if set(sys.modules) - before else 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_shapes_are_kept_and_nonsense_is_refused():
    order = WindowOrder(10, 0, 3, 2)
    assert order.index(np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert order.index(np.array([], dtype=np.int64)).shape == (0,)
    with pytest.raises(ValueError, match="found -1"):
        order.index(np.array([-1]))
    with pytest.raises(ValueError, match="found 0"):
        WindowOrder(0, 0, 3).index(np.arange(3))
