"""Logistic regression by stochastic gradient descent, in whole numbers.

A text is a vector of length 1: 1/√n at each of its n buckets. Each epoch shows as many good texts
as bad ones, taking turns, the smaller kind again from its begin where it ends; the step falls
evenly to nothing, which stands in for averaging the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.label.features import Features
from penstock.data.label.integers import ONE, sigmoid_list

_MOST_WEIGHT = (1 << 31) - 1


@dataclass(frozen=True)
class Trained:
    weights: npt.NDArray[np.int32]  # of each bucket, fixed-point
    bias: int


def fit(
    good: Sequence[Features], bad: Sequence[Features], bits: int, epochs: int, rate: int
) -> Trained:
    """`rate` is in 1/256. Texts are shown in the order given: shuffle them before."""
    kinds = [[part.of(i) for part in parts for i in range(len(part))] for parts in (good, bad)]
    weights = np.zeros(1 << bits, np.int64)
    bias = 0
    table, step_bits, zero = sigmoid_list()
    total = epochs * max(map(len, kinds))
    for turn in range(total):
        step = rate * (total - turn) // total
        for texts, target in zip(kinds, (ONE, 0), strict=True):
            buckets = texts[turn % len(texts)]
            if not len(buckets):
                continue
            root = math.isqrt(len(buckets) << 16)
            margin = (int(weights[buckets].sum()) << 8) // root + bias
            place = min(max((margin >> step_bits) + zero, 0), len(table) - 1)
            miss = target - table[place]
            weights[buckets] += miss * step // root
            bias += miss * step >> 16
    return Trained(np.clip(weights, -_MOST_WEIGHT, _MOST_WEIGHT).astype(np.int32), bias)
