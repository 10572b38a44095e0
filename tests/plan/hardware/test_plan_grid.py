"""Interpolation between readings: exact at them, monotone, sane beyond them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.hardware.grid import Grid

SIDES = (64.0, 256.0, 1024.0)


def cube(seconds: list[float]) -> list[tuple[float, ...]]:
    sizes = [(m, k, n) for m in SIDES for k in SIDES for n in SIDES]
    return [(*at, t) for at, t in zip(sizes, seconds, strict=True)]


times = st.lists(st.floats(1e-6, 1.0), min_size=27, max_size=27)
side = st.floats(8, 20_000)


def test_exact_at_the_points() -> None:
    points = [(m, k, n, 1e-6 + m * k * n * 1e-11) for m in SIDES for k in SIDES for n in SIDES]
    grid = Grid(points, (1, 1, 1))
    for *at, seconds in points:
        assert grid.seconds(*at) == pytest.approx(seconds)


@settings(max_examples=60, deadline=None)
@given(times, side, side, side, st.integers(0, 2), st.floats(1, 5))
def test_never_shrinks_as_a_size_grows(
    seconds: list[float], m: float, k: float, n: float, axis: int, more: float
) -> None:
    grid = Grid(cube(seconds), (1, 1, 1))
    larger = [m, k, n]
    larger[axis] *= more
    assert grid.seconds(*larger) >= grid.seconds(m, k, n) * (1 - 1e-9)


def test_beyond_the_last_point_it_grows_as_told() -> None:
    grid = Grid([(128.0, 1.0), (512.0, 3.0)], (2.0,))
    assert grid.seconds(1024) == pytest.approx(12.0)


def test_between_two_points_it_is_a_line_on_log_axes() -> None:
    grid = Grid([(100.0, 1.0), (400.0, 4.0)], (1.0,))
    assert grid.seconds(200) == pytest.approx(2.0)


def test_below_the_first_point_a_call_still_costs() -> None:
    grid = Grid([(100.0, 1.0), (200.0, 1.0), (400.0, 2.0)], (1.0,))
    assert grid.seconds(1) == pytest.approx(1.0)


def test_a_corner_that_was_not_measured_goes_on_at_the_same_rate() -> None:
    points = [(m, n, m * n * 1e-6) for m in (1.0, 4.0) for n in (1.0, 4.0)][:-1]
    assert Grid(points, (1, 1)).seconds(4, 4) == pytest.approx(16e-6)


def test_one_point_is_a_rate() -> None:
    assert Grid([(100.0, 1.0)], (1.0,)).seconds(300) == pytest.approx(3.0)
