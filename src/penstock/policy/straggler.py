"""The rank that holds the others up: one whose own work takes longer, step after step.

The time that counts is a rank's own work: compute and waiting for its data. Time in collectives
says the opposite, because the fast ranks wait there for the slow one.

On a machine with other work, now one rank is slower and now another. So the last steps are cut into
windows, and a rank is reported only if it was slower in each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

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
    factor: float  # its time over the median of the others, in the median of the windows
    slow: bool


def decide(
    stragglers: frozenset[int], work_s: Mapping[int, Sequence[float]]
) -> tuple[frozenset[int], list[StragglerChange]]:
    """Return the ranks that are slow now, and what changed. `work_s`: seconds of own work in
    each rank's last steps.
    """
    kept = {r: s[-KEPT_STEPS:] for r, s in work_s.items() if len(s) >= FEWEST_STEPS}
    windows = [{rank: _part(steps, n) for rank, steps in kept.items()} for n in range(WINDOWS)]
    after, changes = set(stragglers), []
    for rank in kept if len(kept) > 1 else ():
        others = [median(s for r, s in window.items() if r != rank) for window in windows]
        factors = [
            window[rank] / max(usual_s, 1e-9)
            for window, usual_s in zip(windows, others, strict=True)
        ]
        # The median of the windows: one slow step makes no straggler.
        factor = median(factors)
        lost_s = median(w[rank] - usual_s for w, usual_s in zip(windows, others, strict=True))
        slow = factor > FINE and lost_s > LEAST_S
        if rank not in stragglers:
            slow = slow and factor > SLOW and min(factors) > FINE
        if slow != (rank in stragglers):
            (after.add if slow else after.discard)(rank)
            changes.append(StragglerChange(rank, factor, slow))
    return frozenset(after), changes


def _part(steps: Sequence[float], window: int) -> float:
    """Return the mean seconds of a step in one of the windows, which are of equal length."""
    begin, end = (len(steps) * number // WINDOWS for number in (window, window + 1))
    return fmean(steps[begin:end])
