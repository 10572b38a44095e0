"""Long curves made short enough for a screen, without hiding a spike."""

import math
from collections.abc import Sequence

import numpy as np

MOST_POINTS = 800  # a wide screen has some 1,500 pixels, and each point is low, mean and high


def starts(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Where each of at most `most` blocks of nearly equal length begins."""
    return np.unique(np.arange(min(count, most)) * count // max(1, min(count, most)))


def means(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The mean of each block, over what is finite in it; NaN where nothing is."""
    fine = np.isfinite(values)
    sums = np.add.reduceat(np.where(fine, values, 0.0), at)
    counts = np.add.reduceat(fine.astype(np.float64), at)
    return np.divide(sums, counts, out=np.full(len(at), np.nan), where=counts > 0)


def extremes(values: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest of each block; NaN where nothing is finite."""
    fine = np.isfinite(values)
    low = np.minimum.reduceat(np.where(fine, values, np.inf), at)
    high = np.maximum.reduceat(np.where(fine, values, -np.inf), at)
    return np.where(np.isfinite(low), low, np.nan), np.where(np.isfinite(high), high, np.nan)


def short(values: Sequence[float] | np.ndarray, digits: int = 6) -> list[float | None]:
    """For JSON: as many digits as a screen can show, and null for what is no number."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in map(float, values)]


def last_of_each(steps: np.ndarray) -> np.ndarray:
    """Of steps in the order they were made: which still count after what was lost is cut off."""
    if len(steps) == 0:
        return np.zeros(0, bool)
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1][1:]
    return np.append(steps[:-1] < lowest_after, True)
