"""The rank that holds the others up: one whose own work takes longer, step after step.

The time that counts is a rank's own work: compute and waiting for its data. Time in collectives
says the opposite, because the fast ranks wait there for the slow one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# Between the two factors nothing changes, so that a rank at the border is not reported repeatedly.
SLOW = 1.3
FINE = 1.15
FEWEST_STEPS = 8
KEPT_STEPS = 32
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
    typical = {
        rank: median(steps[-KEPT_STEPS:])
        for rank, steps in work_s.items()
        if len(steps) >= FEWEST_STEPS
    }
    after, changes = set(stragglers), []
    for rank, own_s in typical.items():
        others = [s for other, s in typical.items() if other != rank]
        if not others:
            continue
        usual_s = median(others)
        factor = own_s / max(usual_s, 1e-9)
        slow = factor > (FINE if rank in stragglers else SLOW) and own_s - usual_s > LEAST_S
        if slow != (rank in stragglers):
            (after.add if slow else after.discard)(rank)
            changes.append(StragglerChange(rank, factor, slow))
    return frozenset(after), changes
