"""Sets of time, against sets of whole seconds that are counted one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.meter.intervals import covered_until, each, measure, own, union, within, without

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12).map(
    lambda found: np.array([(a, a + n) for a, n in found], np.int64).reshape(-1, 2)
)


def seconds(spans: np.ndarray) -> set[int]:
    return {t for a, b in spans.tolist() for t in range(a, b)}


def is_a_set(spans: np.ndarray) -> bool:
    lengths, gaps = spans[:, 1] - spans[:, 0], spans[1:, 0] - spans[:-1, 1]
    return bool((lengths > 0).all() and (gaps >= 0).all())


@given(pairs)
def test_a_union_covers_what_its_pairs_cover(a: np.ndarray) -> None:
    made = union(a)
    assert is_a_set(made)
    assert seconds(made) == seconds(a)
    assert measure(made) == len(seconds(a))
    assert np.array_equal(union(made), made)


@given(pairs, st.integers(0, 8))
def test_small_holes_can_be_closed_and_nothing_else(a: np.ndarray, gap: int) -> None:
    plain, closed = union(a), union(a, gap)
    assert seconds(plain) <= seconds(closed)
    holes = [(x, y) for x, y in zip(plain[:-1, 1].tolist(), plain[1:, 0].tolist(), strict=True)]
    filled = {t for x, y in holes if y - x <= gap for t in range(x, y)}
    assert seconds(closed) == seconds(plain) | filled


@given(pairs, pairs)
def test_a_set_is_cut_into_what_another_has_and_has_not(a: np.ndarray, b: np.ndarray) -> None:
    a, b = union(a), union(b)
    common, rest = within(a, b), without(a, b)
    assert is_a_set(common)
    assert is_a_set(rest)
    assert seconds(common) == seconds(a) & seconds(b)
    assert seconds(rest) == seconds(a) - seconds(b)
    assert measure(common) + measure(rest) == measure(a)


@given(pairs, st.lists(st.integers(-5, 80), max_size=5))
def test_how_much_lies_before_a_time(a: np.ndarray, times: list[int]) -> None:
    found = covered_until(union(a), np.array(times, np.int64))
    assert found.tolist() == [sum(t < time for t in seconds(a)) for time in times]


@given(pairs, pairs)
def test_what_pairs_cover_is_counted_once_and_for_the_first(a: np.ndarray, b: np.ndarray) -> None:
    a = a[np.argsort(a[:, 0], kind="stable")]
    inside, taken, expected = seconds(b), set(), []
    for pair in a:
        mine = seconds(pair[None]) & inside
        expected.append(len(mine - taken))
        taken |= mine
    assert each(a, union(b)).tolist() == expected


nested = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.integers(0, 3), inner), max_size=3)
)


@given(nested)
def test_the_innermost_span_has_each_moment(tree: list) -> None:
    """Spans are laid out from a tree: each has a second before, between and after its children."""
    spans: list[tuple[int, int]] = []
    clock = 0

    def lay(children: list) -> None:
        nonlocal clock
        for pause, inner in children:
            clock += pause
            place, start = len(spans), clock
            spans.append((start, start))
            clock += 1
            lay(inner)
            clock += 1
            spans[place] = (start, clock)

    lay(tree)
    rows = own(np.array(spans, np.int64).reshape(-1, 2))
    owners = {t: i for a, b, i in rows.tolist() for t in range(a, b)}
    expected = {
        t: max(i for i, (a, b) in enumerate(spans) if a <= t < b)
        for t in range(clock)
        if any(a <= t < b for a, b in spans)
    }
    assert owners == expected
    assert measure(rows[:, :2]) == len(expected)
