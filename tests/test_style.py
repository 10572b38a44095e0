"""Number formats for people, and the colours of the causes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.causes import Cause
from penstock.policy.restart import EARLY
from penstock.style import (
    CAUSE_COLOURS,
    STATUS_LEVELS,
    cause_classes,
    cause_variables,
    format_against_plan,
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_energy,
    format_loss,
    format_mass,
    format_predicted_times,
    format_slowdown,
    format_step_time,
    format_usd,
)

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
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


@given(st.floats(0, 1e9))
def test_a_formatted_duration_is_exact_to_its_smaller_unit(seconds: float) -> None:
    parts = re.findall(r"([\d.]+) (s|min|h|d)", format_duration(seconds))
    assert 1 <= len(parts) <= 2
    said = sum(float(number) * UNITS[unit] for number, unit in parts)
    smallest = UNITS[parts[-1][1]]
    assert abs(said - seconds) <= (0.051 if seconds < 9.95 else max(0.5, smallest))
    if len(parts) == 2:
        assert float(parts[1][0]) < UNITS[parts[0][1]] / smallest  # never "1 min 60 s"


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_longer_duration_is_never_formatted_as_a_shorter_one(one: float, other: float) -> None:
    def value(seconds: float) -> float:
        found = re.findall(r"([\d.]+) (s|min|h|d)", format_duration(seconds))
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
def test_a_mass_has_three_digits(amount: float, words: str) -> None:
    assert format_mass(amount) == words


@pytest.mark.parametrize(
    ("joules", "words"),
    [
        (0.0, "0 J"),
        (690.4, "690 J"),
        (3600.0, "1.00 Wh"),
        (45_000.0, "12.5 Wh"),
        (3.42 * 3.6e6, "3.42 kWh"),
        (1.25 * 3.6e9, "1.25 MWh"),
        (4200 * 3.6e9, "4,200 MWh"),
    ],
)
def test_an_energy_has_three_digits(joules: float, words: str) -> None:
    assert format_energy(joules) == words


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        (0.0, "$0.00"),
        (0.0000421, "$0.000042"),
        (0.0042, "$0.0042"),
        (0.12, "$0.12"),
        (35.0, "$35.00"),
        (1234.5, "$1,234"),
    ],
)
def test_small_amounts_of_money_show_two_figures(usd: float, words: str) -> None:
    assert format_usd(usd) == words


def test_counts_sizes_losses_and_steps() -> None:
    assert [format_count(n) for n in (3_214_592, 999_999, 7)] == ["3.21M", "1M", "7"]
    assert [format_bytes(n) for n in (512, 1536, 3 << 30)] == ["512 B", "1.5 KiB", "3.0 GiB"]
    assert [format_loss(x) for x in (4.3567, None, float("nan"))] == ["4.357", "–", "–"]
    assert [format_step_time(s) for s in (0.0123, 1.234)] == ["12 ms", "1.23 s"]


def test_every_cause_has_colours_of_its_own() -> None:
    assert list(CAUSE_COLOURS) == [str(cause) for cause in Cause]
    for kind in ("light", "dark", "terminal"):
        assert len({getattr(colour, kind) for colour in CAUSE_COLOURS.values()}) == len(Cause)
    for cause in Cause:
        assert f"--{cause}: light-dark({CAUSE_COLOURS[cause].light}, " in cause_variables()
        assert f".c-{cause} {{ fill: {CAUSE_COLOURS[cause].dark}; " in cause_classes()


def test_a_run_that_stopped_early_ended_well() -> None:
    assert STATUS_LEVELS[EARLY] == STATUS_LEVELS["done"] == "good"


@pytest.mark.parametrize(
    ("ratio", "plan", "change", "slowdown"),
    [
        (1.12, "12% slower than planned", "+12%", "12% slower"),
        (0.92, "8% faster than planned", "-8%", "8% faster"),
        (1.99, "99% slower than planned", "+99%", "99% slower"),
        (2.0, "2 × the planned time", "2 ×", "2 × as long"),
        (5.32, "5.3 × the planned time", "5.3 ×", "5.3 × as long"),
        (0.41, "0.41 × the planned time", "0.41 ×", "0.41 × as long"),
        (43.2, "43 × the planned time", "43 ×", "43 × as long"),
    ],
)
def test_a_time_far_from_its_plan_is_a_multiple(
    ratio: float, plan: str, change: str, slowdown: str
) -> None:
    assert format_against_plan(ratio) == plan
    assert format_change(ratio) == change
    assert format_slowdown(ratio) == slowdown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((27.0, 20.0, 41.0), "27 s (20–41 s)"),
        ((130.0, 58.0, 310.0), "2.2 min (58 s–5.2 min)"),
        ((15120.0, 14040.0, 16560.0), "4.2 h (3.9–4.6 h)"),
        ((187 * 86400.0, 186 * 86400.0, 189 * 86400.0), "187 days (186–189 days)"),
        ((0.02, 0.02, 0.02), "20 ms (20–20 ms)"),
    ],
)
def test_a_predicted_time_and_its_range_have_the_unit_that_suits_them(
    seconds: tuple[float, float, float], words: str
) -> None:
    assert format_predicted_times(*seconds) == words
