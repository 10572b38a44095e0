"""How often a run saves: the guard's own policy, asked with the planner's times."""

from dataclasses import dataclass
from math import ceil

from penstock.plan.life.recovery import RecoveryCosts
from penstock.policy import checkpoint as policy
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class SavePace:
    """Durable saves and copies in memory; seconds are of work."""

    interval_s: float  # between durable saves, in whole steps
    stall_s: float  # that one of either kind holds training up
    fast_steps: int  # between copies in memory; 0: none

    def fast_share(self, step_s: float) -> float:
        """Return the share of the working time that copies in memory take."""
        if not self.fast_steps:
            return 0.0
        return self.stall_s / (self.fast_steps * step_s + self.stall_s)


def save_pace(run: Run, step_s: float, cost: RecoveryCosts) -> SavePace:
    """Return how often the run saves."""
    stall_s, asked = cost.stall_s(step_s), run.guard.checkpoint
    if asked == "auto":
        wanted_s = policy.interval_s(policy.cost_s(stall_s, cost.save_s), cost.mtbf_s)
    else:
        wanted_s = asked.steps * step_s if asked.steps is not None else asked.seconds or 0.0
    steps = max(1, ceil(wanted_s / step_s - 1e-9))
    return SavePace(steps * step_s, stall_s, _fast_steps(run, step_s, stall_s, cost.copy_s))


def _fast_steps(run: Run, step_s: float, stall_s: float, seal_s: float) -> int:
    asked = run.guard.fast
    if asked == "never":
        return 0
    if asked == "auto":
        return policy.fast_steps(step_s, stall_s, seal_s)
    return asked.steps or max(1, int((asked.seconds or 0.0) / step_s))
