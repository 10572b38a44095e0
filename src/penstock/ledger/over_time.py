"""Where the time went, over time: rank-seconds by cause in bins of equal length."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.ledger.history import History
from penstock.ledger.merge import Line, lines
from penstock.ledger.pieces import CAUSES


@dataclass(frozen=True)
class OverTime:
    """Adds up to the ledger of the same ranks; between invocations there is nothing."""

    edges: np.ndarray  # unix seconds, one more than there are bins
    seconds: np.ndarray  # [bins, causes] rank-seconds, causes in their order


def over_time(
    history: History,
    bins: int = 240,
    ranks: range | None = None,
    found: Iterable[Line] | None = None,
) -> OverTime:
    """From the start of the first invocation to the end of the last; of some ranks, or of all.

    `found` are the lines of the history when somebody has them already.
    """
    starts = [invocation.start for invocation, _ in history] or [0.0]
    ends = [invocation.end for invocation, _ in history] or [0.0]
    edges = np.linspace(min(starts), max(ends), bins + 1)
    seconds = done(lines(history) if found is None else found, edges, ranks)
    return OverTime(edges, np.maximum(np.diff(seconds, axis=0), 0.0))


def done(found: Iterable[Line], t: np.ndarray, ranks: range | None = None) -> np.ndarray:
    """Rank-seconds by cause before these moments, of some ranks or of all: [moments, causes]."""
    seconds = np.zeros((len(t), len(CAUSES)))
    for line in found:
        asked = line.ranks if ranks is None else _both(line.ranks, ranks)
        if asked:
            seconds += len(asked) * line.upto(t)
    return seconds


def _both(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))
