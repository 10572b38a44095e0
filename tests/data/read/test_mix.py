"""The places of a mixture: each part its share in any stretch, and nothing lost or twice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.mix import MAX_PLACES, MIX, mixing_cycle, mixing_quotas
from penstock.errors import PenstockError

weights = st.lists(st.integers(1, 400).map(lambda n: n / 100), min_size=1, max_size=8)


def test_the_places_of_cycle_1_never_change():
    assert MIX == "cycle-1"
    cycle = mixing_cycle([5, 3, 2])
    assert cycle.part.tolist() == PLACES
    assert cycle.quotas.tolist() == [5, 3, 2]


PLACES = [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]


def test_quotas_are_exact_if_possible():
    assert mixing_quotas([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert mixing_quotas([1, 1]) == [1, 1]
    assert mixing_quotas([3]) == [1]
    assert mixing_quotas([333, 667]) == [333, 667]
    assert mixing_quotas([1e-4, 0.9999]) == [1, 9999]
    odd = mixing_quotas([1 / 3, 1 / 7, 0.5])
    assert sum(odd) == MAX_PLACES
    total = 1 / 3 + 1 / 7 + 0.5
    for quota, weight in zip(odd, [1 / 3, 1 / 7, 0.5], strict=True):
        assert abs(quota - MAX_PLACES * weight / total) < 1
    with pytest.raises(PenstockError, match="part 2 with weight 1e-09"):
        mixing_quotas([1, 1e-9])


@settings(deadline=None, max_examples=60)
@given(weights, st.data())
def test_any_stretch_holds_each_part_by_its_weight(parts, data):
    """Under one sample off from the start, so under two off in any stretch."""
    cycle = mixing_cycle(parts)
    start = data.draw(st.integers(0, 3 * cycle.places) | st.integers(0, 10**15))
    count = data.draw(st.integers(0, 2 * min(cycle.places, 5000)))
    which, _ = cycle.at(np.arange(start, start + count))
    found = np.bincount(which, minlength=len(parts))
    expected = count * cycle.quotas / cycle.places
    assert np.abs(found - expected).max() < 2
    from_start = cycle.counts(start) - (start % cycle.places) * cycle.quotas / cycle.places
    assert np.abs(from_start - start // cycle.places * cycle.quotas).max() < 1


@settings(deadline=None, max_examples=60)
@given(weights, st.integers(0, 10**15), st.integers(0, 300))
def test_each_part_counts_up_without_gaps(parts, start, count):
    cycle = mixing_cycle(parts)
    which, numbers = cycle.at(np.arange(start, start + count))
    before, after = cycle.counts(start), cycle.counts(start + count)
    assert before.sum() == start
    for part in range(len(parts)):
        assert numbers[which == part].tolist() == list(range(before[part], after[part]))


@settings(deadline=None, max_examples=60)
@given(weights, st.data())
def test_reach_is_as_far_as_every_part_lasts(parts, data):
    cycle = mixing_cycle(parts)
    there = [data.draw(st.integers(0, 1000)) for _ in parts]
    reach = cycle.reach(there)
    assert (cycle.counts(reach) <= there).all()
    assert (cycle.counts(reach + 1) > there).any()
