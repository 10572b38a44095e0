"""The decision while a run is asked to stop: let it save, end it at once, or end it unsaved.

A notice of preemption (SIGTERM) leaves a grace period, after which the machine is gone. A person
who asks waits as long as the save takes, and can ask twice to end the run at once.
"""

from dataclasses import dataclass
from typing import Literal

Action = Literal["wait", "end", "kill"]

# Time to end processes and to write the last records; the grace period has to cover it too.
LAST_S = 1.0


@dataclass(frozen=True)
class PreemptState:
    """A run that was asked to stop."""

    asked_s: float  # on a clock that never jumps
    grace_s: float | None  # None: whoever asked waits
    begun: bool  # whether this attempt has begun a step: before that there is nothing to save


def decide(state: PreemptState, now_s: float) -> Action:
    """Decide: `wait` for the ranks to save; `end` them, since nothing is lost; `kill` them,
    since the grace period is over.
    """
    if not state.begun:
        return "end"
    if state.grace_s is None or now_s - state.asked_s < max(state.grace_s - LAST_S, 0.0):
        return "wait"
    return "kill"
