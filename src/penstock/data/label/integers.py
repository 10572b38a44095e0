"""Logistic functions of whole numbers: the same on every machine, with every numpy and libm.

A fixed-point number is a whole number of 1/65536 (`ONE`). The tables come from `decimal`, whose
exp and ln are rounded correctly, which no C library promises.
"""

from decimal import Context, Decimal
from functools import cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ONE = 1 << 16
_STEP_BITS = 8  # the table of `sigmoid` has a step each 1/256
_SIDE = 12 << (16 - _STEP_BITS)  # and ends at ±12, where a score is 0 or 1000
_CONTEXT = Context(prec=24)


@cache
def _sigmoids() -> Ints:
    values = []
    for step in range(-_SIDE, _SIDE):
        x = (Decimal(step) + Decimal("0.5")) / (1 << (16 - _STEP_BITS))
        values.append(int(_CONTEXT.divide(Decimal(ONE), 1 + _CONTEXT.exp(-x))))
    return np.array(values, np.int64)


def sigmoid(margins: Ints) -> Ints:
    """1 / (1 + e^-x), fixed-point in and out."""
    return _sigmoids()[np.clip(margins >> _STEP_BITS, -_SIDE, _SIDE - 1) + _SIDE]


def sigmoid_list() -> tuple[list[int], int, int]:
    """For one number at a time: the table, the bits of a step, the step of 0."""
    return _sigmoids().tolist(), _STEP_BITS, _SIDE


def thousandths(shares: Ints) -> Ints:
    """Of fixed-point shares, to the nearest."""
    return (shares * 1000 + ONE // 2) >> 16


@cache
def surprises() -> Ints:
    """-ln(k / 1000), fixed-point, for k from 0 to 1000; 0 counts as half a thousandth."""
    shares = [Decimal("0.5"), *map(Decimal, range(1, 1001))]
    return np.array([int(-_CONTEXT.ln(k / 1000) * ONE) for k in shares], np.int64)


def roots(counts: Ints) -> Ints:
    """√n × 256, rounded down, for n below 2^36; at least 1."""
    # IEEE's square root is correctly rounded, and of whole numbers below 2^52 its floor is exact.
    return np.maximum(np.sqrt((counts << 16).astype(np.float64)).astype(np.int64), 1)
