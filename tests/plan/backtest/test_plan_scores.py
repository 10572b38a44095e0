"""Errors against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.backtest import scores
from penstock.plan.backtest.scores import ScoredPair, score

# Errors of +10 %, -20 % and +30 % from source "a", -50 % from "b".
PAIRS = [
    ScoredPair(1.1, 1.0, "a", "H100"),
    ScoredPair(1.6, 2.0, "a", "A100"),
    ScoredPair(13.0, 10.0, "a", "H100"),
    ScoredPair(2.0, 4.0, "b", "H100"),
]
positive = st.floats(1e-3, 1e3)
pairs = st.lists(
    st.builds(ScoredPair, positive, positive, st.sampled_from("abc"), st.sampled_from("xy")),
    min_size=1,
)


def test_by_hand() -> None:
    found = score(PAIRS)
    assert found.rows == 4
    assert found.mape == pytest.approx((10 + 20 + 30 + 50) / 4)
    assert found.median_ape == pytest.approx(25)
    assert found.bias == pytest.approx((10 - 20 + 30 - 50) / 4)
    assert found.macro_mape == pytest.approx((20 + 50) / 2)


def test_nothing_to_average_is_none_and_not_zero() -> None:
    assert score([]) == scores.Score(0, None, None, None, None)


def test_groups_are_largest_first_and_lose_nothing() -> None:
    assert {k: len(v) for k, v in scores.by_source(PAIRS).items()} == {"a": 3, "b": 1}
    assert list(scores.by_accelerator(reversed(PAIRS))) == ["H100", "A100"]


def test_worst_counts_both_directions() -> None:
    assert scores.worst(PAIRS, 2) == [PAIRS[3], PAIRS[2]]


@given(pairs)
def test_macro_lies_between_the_best_and_the_worst_source(items: list[ScoredPair]) -> None:
    own = [scores.mape(group) or 0 for group in scores.by_source(items).values()]
    macro = scores.macro_mape(items)
    assert macro is not None
    assert min(own) * (1 - 1e-9) <= macro <= max(own) * (1 + 1e-9)


@given(pairs, st.integers(2, 5))
def test_macro_does_not_care_how_often_a_source_repeats_itself(
    items: list[ScoredPair], times: int
) -> None:
    repeated = items + [p for p in items if p.source == "a"] * (times - 1)
    assert scores.macro_mape(repeated) == pytest.approx(scores.macro_mape(items))


@given(pairs)
def test_bias_is_never_larger_than_the_mean_error(items: list[ScoredPair]) -> None:
    found = score(items)
    assert found.bias is not None
    assert found.mape is not None
    assert abs(found.bias) <= found.mape * (1 + 1e-9)
