"""The rank that holds the others up: one whose own work takes longer, step after step.

The time that counts is a rank's own work: compute and waiting for its data. Time in collectives
says the opposite, because the fast ranks wait there for the slow one.

On a machine with other work, now one rank is slower and now another. So the last steps are cut into
windows, and a rank is reported only if it was slower in each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# Between the two factors nothing changes, so that a rank at the border is not reported repeatedly.
SLOW = 1.3
FINE = 1.15
FEWEST_STEPS = 12
KEPT_STEPS = 32
WINDOWS = 4  # of the steps that are kept
LEAST_S = 2e-3  # per step: below it, a factor is noise


@dataclass(frozen=True)
class StragglerChange:
    """A rank that became a straggler, or (`slow` is false) no longer is one."""

    rank: int
    factor: float  # its time over the median of the others
    slow: bool


def decide(
    stragglers: frozenset[int], work_s: Mapping[int, Sequence[float]]
) -> tuple[frozenset[int], list[StragglerChange]]:
    """Return the ranks that are slow now, and what changed. `work_s`: seconds of own work in
    each rank's last steps.
    """
    kept = {r: s[-KEPT_STEPS:] for r, s in work_s.items() if len(s) >= FEWEST_STEPS}
    typical = {rank: median(steps) for rank, steps in kept.items()}
    windows = [{rank: median(part) for rank, part in each.items()} for each in _windows(kept)]
    after, changes = set(stragglers), []
    for rank, own_s in typical.items():
        others = [s for other, s in typical.items() if other != rank]
        if not others:
            continue
        usual_s = median(others)
        factor = _factor(rank, typical)
        slow = factor > (FINE if rank in stragglers else SLOW) and own_s - usual_s > LEAST_S
        if slow and rank not in stragglers:
            slow = all(_factor(rank, window) > FINE for window in windows)
        if slow != (rank in stragglers):
            (after.add if slow else after.discard)(rank)
            changes.append(StragglerChange(rank, factor, slow))
    return frozenset(after), changes


def _windows(kept: Mapping[int, Sequence[float]]) -> list[dict[int, Sequence[float]]]:
    """Cut the steps of each rank into windows of equal length, oldest first."""
    return [
        {
            rank: steps[len(steps) * part // WINDOWS : len(steps) * (part + 1) // WINDOWS]
            for rank, steps in kept.items()
        }
        for part in range(WINDOWS)
    ]


def _factor(rank: int, window_s: Mapping[int, float]) -> float:
    """Return a rank's time in a window over the median of the others."""
    usual_s = median(s for other, s in window_s.items() if other != rank)
    return window_s[rank] / max(usual_s, 1e-9)
