"""Choosing a layout: regret and rank correlation on made sweeps."""

from itertools import product
from math import sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_rows import rows
from penstock.plan.backtest import ranking
from penstock.plan.backtest.ranking import LayoutSweep, kendall_tau, sweeps

# One job in three layouts. The planner likes the second, the first was the fastest.
LAYOUTS: list[dict[str, object]] = [
    {"tp": 1, "step_time_s": 2.0},
    {"tp": 2, "step_time_s": 2.2},
    {"tp": 4, "step_time_s": 3.0},
]
PREDICTED = [1.9, 1.8, 2.5]


def made(path: Path, changes: list[dict[str, object]], predicted: list[float], **how: bool):
    found = rows(path, *changes)
    timed = [(r, p, r.step_s or 0.0) for r, p in zip(found, predicted, strict=True)]
    return sweeps(timed, **how)


def test_regret_and_tau_by_hand(tmp_path: Path) -> None:
    (sweep,) = made(tmp_path / "a.csv", LAYOUTS, PREDICTED)
    assert sweep.regret == pytest.approx(10)  # 2.2 s chosen, 2.0 s possible
    assert sweep.tau == pytest.approx(1 / 3)  # two of three pairs in order
    assert (sweep.source, len(sweep.measured_s)) == ("lab", 3)


def test_a_perfect_order_has_no_regret(tmp_path: Path) -> None:
    (sweep,) = made(tmp_path / "a.csv", LAYOUTS, [20.0, 21.0, 22.0])
    assert sweep.regret == 0
    assert sweep.tau == 1


def test_a_tie_for_the_first_place_counts_as_the_slower_one() -> None:
    assert LayoutSweep("a", "job", (1.0, 1.0, 2.0), (1.0, 1.5, 1.2)).regret == pytest.approx(50)


def test_the_same_layout_twice_counts_once_as_its_median(tmp_path: Path) -> None:
    again: list[dict[str, object]] = [
        *LAYOUTS, {"tp": 1, "step_time_s": 3.0}, {"tp": 1, "step_time_s": 2.1}
    ]  # fmt: skip
    (sweep,) = made(tmp_path / "a.csv", again, [*PREDICTED, 1.9, 1.9])
    assert sweep.measured_s == (2.1, 2.2, 3.0)


def test_two_layouts_and_a_repetition_are_no_sweep(tmp_path: Path) -> None:
    assert made(tmp_path / "a.csv", [*LAYOUTS[:2], LAYOUTS[0]], PREDICTED) == []


@pytest.mark.parametrize(
    "other",
    [
        {"source": "elsewhere"},
        {"global_batch_seqs": 128},
        {"seq_len": 4096},
        {"gpu": "A100-80GB"},
        {"num_gpus": 16},
        {"precision": "fp8"},
        {"framework": "Megatron-LM"},
        {"layers": 17},
    ],
    ids=str,
)
def test_rows_of_another_job_are_not_compared(tmp_path: Path, other: dict[str, object]) -> None:
    assert len(made(tmp_path / "a.csv", LAYOUTS, PREDICTED)) == 1
    mixed = [*LAYOUTS[:2], LAYOUTS[2] | other]
    assert made(tmp_path / "b.csv", mixed, PREDICTED) == []


def test_software_options_are_a_choice_unless_held_fixed(tmp_path: Path) -> None:
    compiled = {"tp": 1, "step_time_s": 1.5, "notes": "compile"}
    changes, predicted = [*LAYOUTS, compiled], [*PREDICTED, 1.2]
    (free,) = made(tmp_path / "a.csv", changes, predicted)
    assert (len(free.measured_s), free.regret) == (4, 0)
    (fixed,) = made(tmp_path / "a.csv", changes, predicted, fixed_software=True)
    assert len(fixed.measured_s) == 3
    assert fixed.regret == pytest.approx(10)


def test_sources_count_alike() -> None:
    one = LayoutSweep("a", "job", (1.0, 2.0, 3.0), (1.3, 1.0, 2.0))  # 30 %
    none = LayoutSweep("b", "job", (1.0, 2.0, 3.0), (1.0, 2.0, 3.0))
    assert ranking.regret([one, none, none, none]) == pytest.approx(15)
    assert ranking.tau([one, none, none]) == pytest.approx((1 / 3 + 1) / 2)
    assert ranking.regret([]) is None


def brute_tau(a: list[int], b: list[int]) -> float:
    """Tau-b as the correlation of signs over all ordered pairs."""

    def sign(x: int) -> int:
        return (x > 0) - (x < 0)

    every = list(product(range(len(a)), repeat=2))
    signs_a = [sign(a[i] - a[j]) for i, j in every]
    signs_b = [sign(b[i] - b[j]) for i, j in every]
    scale = sqrt(sum(s * s for s in signs_a) * sum(s * s for s in signs_b))
    return sum(x * y for x, y in zip(signs_a, signs_b, strict=True)) / scale if scale else 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=9))
def test_tau_with_ties_is_the_brute_force(points: list[tuple[int, int]]) -> None:
    a, b = [p[0] for p in points], [p[1] for p in points]
    assert kendall_tau(a, b) == pytest.approx(brute_tau(a, b))


def test_tau_at_its_ends() -> None:
    assert kendall_tau([1, 2, 3], [4, 5, 6]) == 1
    assert kendall_tau([1, 2, 3], [6, 5, 4]) == -1
    assert kendall_tau([1, 1, 1], [1, 2, 3]) == 0
