"""Logistic regression in integers: the same weights on every machine, with every numpy and libm.

A fixed-point number is an integer that counts 1/65536 (`ONE`). The tables of exp and ln come from
`decimal`, which rounds correctly; no C library promises that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cache

import numpy as np
import numpy.typing as npt

from penstock.data.label.features import Features

Ints = npt.NDArray[np.int64]

ONE = 1 << 16
_STEP_BITS = 8  # the table of `sigmoid` has one entry per 1/256
_SIDE = 12 << (16 - _STEP_BITS)  # and ends at ±12, where a score is 0 or 1000
_CONTEXT = Context(prec=24)
_MAX_WEIGHT = (1 << 31) - 1


@dataclass(frozen=True)
class LogisticWeights:
    """The result of a training."""

    weights: npt.NDArray[np.int32]  # one per bucket, fixed-point
    bias: int


def fit_logistic(
    good: Sequence[Features], bad: Sequence[Features], bits: int, epochs: int, rate: int
) -> LogisticWeights:
    """Train by stochastic gradient descent on texts in the given order; shuffle them before.

    A text is a vector of length 1: 1/√n in each of its n buckets. An epoch alternates between good
    and bad texts, and starts the smaller kind again from its first text when it runs out. `rate` is
    the first learning rate in 1/256; it falls linearly to 0, which replaces averaging the weights.
    """
    kinds = [[part.of_text(i) for part in parts for i in range(len(part))] for parts in (good, bad)]
    weights = np.zeros(1 << bits, np.int64)
    bias = 0
    table = _sigmoid_table().tolist()  # a list is faster than an array for one number at a time
    total = epochs * max(map(len, kinds))
    for turn in range(total):
        step = rate * (total - turn) // total
        for texts, target in zip(kinds, (ONE, 0), strict=True):
            buckets = texts[turn % len(texts)]
            if not len(buckets):
                continue
            root = math.isqrt(len(buckets) << 16)
            margin = (int(weights[buckets].sum()) << 8) // root + bias
            entry = min(max((margin >> _STEP_BITS) + _SIDE, 0), len(table) - 1)
            error = target - table[entry]
            weights[buckets] += error * step // root
            bias += error * step >> 16
    return LogisticWeights(np.clip(weights, -_MAX_WEIGHT, _MAX_WEIGHT).astype(np.int32), bias)


@cache
def _sigmoid_table() -> Ints:
    values = []
    for step in range(-_SIDE, _SIDE):
        x = (Decimal(step) + Decimal("0.5")) / (1 << (16 - _STEP_BITS))
        values.append(int(_CONTEXT.divide(Decimal(ONE), 1 + _CONTEXT.exp(-x))))
    return np.array(values, np.int64)


def sigmoid(margins: Ints) -> Ints:
    """Return 1 / (1 + e^-x); argument and result are fixed-point."""
    return _sigmoid_table()[np.clip(margins >> _STEP_BITS, -_SIDE, _SIDE - 1) + _SIDE]


def to_thousandths(shares: Ints) -> Ints:
    """Round fixed-point shares to the nearest thousandth."""
    return (shares * 1000 + ONE // 2) >> 16


@cache
def log_losses() -> Ints:
    """Return -ln(k / 1000), fixed-point, for k from 0 to 1000; 0 counts as half a thousandth."""
    shares = [Decimal("0.5"), *map(Decimal, range(1, 1001))]
    return np.array([int(-_CONTEXT.ln(k / 1000) * ONE) for k in shares], np.int64)


def fixed_sqrt(counts: Ints) -> Ints:
    """Return √n × 256, rounded down, for n below 2^36; at least 1."""
    # IEEE's square root is correctly rounded, and its floor is exact for integers below 2^52.
    return np.maximum(np.sqrt((counts << 16).astype(np.float64)).astype(np.int64), 1)
