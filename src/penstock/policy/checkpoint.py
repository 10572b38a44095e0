"""When to save: the interval that loses the least time to saving and to faults together."""

from dataclasses import dataclass
from functools import cache
from statistics import median

from penstock.catalog import failures

# A machine of its own fails rarely, but people stop, move and unplug it: never risk more than this.
LONGEST_S = 600.0
# A save that takes almost nothing still should not be made at every step.
SHORTEST_S = 15.0


def interval_s(save_s: float, mtbf_s: float) -> float:
    """Young's interval, sqrt(2 × save × time between failures), within the bounds above.

    The upper bound is for people; it may not make saving cost more than one part in twenty.
    """
    best = (2.0 * max(save_s, 1e-3) * mtbf_s) ** 0.5
    return min(max(best, SHORTEST_S), max(LONGEST_S, 20.0 * save_s))


@cache
def node_mtbf_s() -> float:
    """Time between failures of one node: the median of the published rates in the catalog."""
    per_1000_days = median(row.value for row in failures.measured("per_1000_node_days"))
    return 1000 * 86400 / per_1000_days


@dataclass(frozen=True)
class State:
    """What the decision looks at."""

    step: int
    now_s: float
    last_step: int  # of the last save
    last_s: float
    save_s: float  # how long the last one took; a guess before the first


def due(state: State, every_steps: int | None, every_s: float | None) -> bool:
    """Save now? `every_steps` or `every_s` from the run file; neither means auto."""
    if state.step == state.last_step:
        return False
    if every_steps is not None:
        return state.step % every_steps == 0
    wait = every_s if every_s is not None else interval_s(state.save_s, node_mtbf_s())
    return state.now_s - state.last_s >= wait
