"""Seconds by cause as a function of time: the seconds of a segment are spread evenly over it.

A ledger is such a function at its end, and a picture over time is its differences: both come from
the same numbers, so they cannot disagree.
"""

from dataclasses import dataclass

import numpy as np

from penstock.ledger.causes import Cause

CAUSES = tuple(Cause)
CAUSE_COLUMN = {cause: place for place, cause in enumerate(CAUSES)}


@dataclass(frozen=True)
class CauseSegments:
    """Segments of time in order, without overlap, and the seconds by cause in each."""

    start: np.ndarray
    end: np.ndarray
    seconds: np.ndarray  # [pieces, causes]

    def seconds_before(self, t: np.ndarray) -> np.ndarray:
        """Return the seconds by cause before each of these moments: [moments, causes]."""
        if not len(self.start):
            return np.zeros((len(t), len(CAUSES)))
        done = np.zeros((len(self.start) + 1, len(CAUSES)))
        np.cumsum(self.seconds, axis=0, out=done[1:])
        begun = np.searchsorted(self.start, t, side="right")
        last = np.maximum(begun - 1, 0)
        length = self.end[last] - self.start[last]
        part = np.divide(t - self.start[last], length, out=np.ones(len(t)), where=length > 0)
        part = np.where(begun > 0, np.clip(part, 0.0, 1.0), 0.0)
        found: np.ndarray = done[last] + self.seconds[last] * part[:, None]
        return found

    def total(self) -> np.ndarray:
        """Return the seconds by cause of all segments."""
        found: np.ndarray = self.seconds.sum(axis=0)
        return found

    def covered_before(self, t: np.ndarray) -> np.ndarray:
        """Return the length of the segments before each of these moments."""
        knots = np.stack([self.start, self.end], axis=1).ravel()
        length = np.zeros(len(knots))
        np.cumsum(self.end - self.start, out=length[1::2])
        length[2::2] = length[1:-1:2]
        return np.interp(t, knots, length) if len(knots) else np.zeros(len(t))


def no_segments() -> CauseSegments:
    return CauseSegments(np.empty(0), np.empty(0), np.empty((0, len(CAUSES))))


def overlap_before(t: np.ndarray, start: float, end: float) -> np.ndarray:
    """Return the part of [start, end] before each of these moments, in seconds."""
    return np.minimum(np.maximum(t, start), end) - start
