"""Rank-seconds by cause over time, in bins of equal length."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.ledger.history import History
from penstock.ledger.merge import GroupTimeline, group_timelines
from penstock.ledger.segments import CAUSES


@dataclass(frozen=True)
class CausesOverTime:
    """The seconds of each bin. They add up to the ledger; between invocations they are zero."""

    edges: np.ndarray  # unix seconds, one more than there are bins
    seconds: np.ndarray  # [bins, causes] rank-seconds, causes in their order


def causes_over_time(
    history: History,
    bins: int = 240,
    ranks: range | None = None,
    found: Iterable[GroupTimeline] | None = None,
) -> CausesOverTime:
    """Return the causes from the first invocation's start to the last one's end, of some ranks or
    all.

    `found` are the timelines of the history if already known.
    """
    starts = [invocation.start for invocation, _ in history] or [0.0]
    ends = [invocation.end for invocation, _ in history] or [0.0]
    edges = np.linspace(min(starts), max(ends), bins + 1)
    seconds = seconds_before(group_timelines(history) if found is None else found, edges, ranks)
    return CausesOverTime(edges, np.maximum(np.diff(seconds, axis=0), 0.0))


def seconds_before(
    found: Iterable[GroupTimeline], t: np.ndarray, ranks: range | None = None
) -> np.ndarray:
    """Return rank-seconds by cause before these moments, of some ranks or all: [moments,
    causes]."""
    seconds = np.zeros((len(t), len(CAUSES)))
    for line in found:
        asked = line.ranks if ranks is None else _both(line.ranks, ranks)
        if asked:
            seconds += len(asked) * line.seconds_before(t)
    return seconds


def _both(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))
