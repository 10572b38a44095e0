"""What `train.precision = "auto"` means, and which given precision is worth a warning."""

import pytest

from penstock.meter.precision import FASTER, Bf16Speed
from penstock.policy.precision import choose_precision, warning


def cpu(speedup: float | None) -> Bf16Speed:
    return Bf16Speed(speedup, "this CPU", "measured")


@pytest.mark.parametrize(
    ("speedup", "precision"),
    [
        (0.0, "fp32"),
        (0.018, "fp32"),
        (1.0, "fp32"),
        (FASTER, "bf16"),
        (3.9, "bf16"),
        (None, "bf16"),
    ],
)
def test_auto_is_bf16_only_where_it_is_clearly_faster(speedup, precision):
    chosen = choose_precision(cpu(speedup))
    assert chosen.precision == precision
    assert "this CPU" in chosen.why
    assert "measured" in chosen.why


def test_weights_in_bf16_need_bf16_matmuls_even_where_they_are_slow():
    chosen = choose_precision(cpu(0.018), weights="bf16")
    assert chosen.precision == "bf16"
    assert "train.weights" in chosen.why


def test_a_slow_precision_is_warned_of_with_its_factor():
    assert "56 × slower than fp32" in warning("bf16", cpu(0.018))
    assert '"fp32" is faster' in warning("bf16", cpu(0.018))
    assert "no bf16 units" in warning("bf16", Bf16Speed(0.0, "V100", "catalog"))
    assert "15 × faster than fp32" in warning("fp32", Bf16Speed(14.8, "H100", "catalog"))


@pytest.mark.parametrize(
    ("precision", "speedup"),
    [("bf16", 2.0), ("bf16", 0.9), ("bf16", None), ("fp32", 2.0), ("fp32", 0.02), ("fp64", 4.0)],
)
def test_a_precision_that_is_about_as_fast_as_another_is_not_warned_of(precision, speedup):
    assert warning(precision, cpu(speedup)) == ""
