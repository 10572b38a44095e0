"""Long curves, made short enough for a screen without hiding a spike."""

import math
from collections.abc import Sequence

import numpy as np

MOST_POINTS = 800  # a wide screen has some 1,500 pixels, and each point is low, mean and high


def block_starts(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Return the first index of each of at most `most` blocks of nearly equal length."""
    return np.unique(np.arange(min(count, most)) * count // max(1, min(count, most)))


def block_means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the mean of the finite values of each block; NaN for a block without any."""
    fine = np.isfinite(values)
    sums = np.add.reduceat(np.where(fine, values, 0.0), starts)
    counts = np.add.reduceat(fine.astype(np.float64), starts)
    return np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)


def block_extremes(values: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest finite value of each block; NaN for a block without any."""
    fine = np.isfinite(values)
    low = np.minimum.reduceat(np.where(fine, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(fine, values, -np.inf), starts)
    return np.where(np.isfinite(low), low, np.nan), np.where(np.isfinite(high), high, np.nan)


def json_numbers(values: Sequence[float] | np.ndarray, digits: int = 6) -> list[float | None]:
    """Convert to numbers for JSON with as many digits as a screen can show; None if not finite."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in map(float, values)]


def not_superseded(steps: np.ndarray) -> np.ndarray:
    """Return which of these steps, in the order they were made, still count.

    After a restart the run repeats steps. The points that it made before from there on are lost.
    """
    if len(steps) == 0:
        return np.zeros(0, bool)
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1][1:]
    return np.append(steps[:-1] < lowest_after, True)
