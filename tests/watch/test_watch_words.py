"""Durations and amounts as a person says them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.watch.style.words import grams, spoken

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (38.2, "38 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3 * 3600 + 12 * 60 + 59, "3 h 12 min"),
        (86399.9, "1 d 00 h"),
        (4 * 86400 + 6 * 3600, "4 d 06 h"),
        (400 * 86400, "400 d 00 h"),
    ],
)
def test_by_hand(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


@given(st.floats(0, 1e9))
def test_what_is_said_is_what_it_took_to_the_smaller_unit(seconds: float) -> None:
    parts = re.findall(r"([\d.]+) (s|min|h|d)", spoken(seconds))
    assert 1 <= len(parts) <= 2
    said = sum(float(number) * UNITS[unit] for number, unit in parts)
    smallest = UNITS[parts[-1][1]]
    assert abs(said - seconds) <= (0.051 if seconds < 9.95 else max(0.5, smallest))
    if len(parts) == 2:
        assert float(parts[1][0]) < UNITS[parts[0][1]] / smallest  # never "1 min 60 s"


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_longer_is_never_said_as_shorter(one: float, other: float) -> None:
    def value(seconds: float) -> float:
        found = re.findall(r"([\d.]+) (s|min|h|d)", spoken(seconds))
        return sum(float(number) * UNITS[unit] for number, unit in found)

    low, high = sorted((one, other))
    assert value(low) <= value(high)


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0.064, "64.0 mg"),
        (1.2, "1.20 g"),
        (999.0, "999 g"),
        (35_100.0, "35.1 kg"),
        (2.1e6, "2.10 t"),
        (4.2e9, "4,200 t"),
    ],
)
def test_grams(amount: float, words: str) -> None:
    assert grams(amount) == words
