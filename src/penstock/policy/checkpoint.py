"""The time to save: the interval that loses the least time to saves and to faults together.

Durable saves outlive the machine and are rare; fast ones stay in memory, for faults of processes,
and are as frequent as goes unnoticed.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import median

from penstock.catalog import failures
from penstock.run.schema.quantity import Every

# A machine of its own fails rarely, but people stop, move and unplug it: never risk more than this.
LONGEST_S = 600.0
# A save that takes almost nothing still should not be made at every step.
SHORTEST_S = 15.0
# Slowdown of training while a save is written in the background: it shares memory, disk and cores.
BEHIND = 0.1
# Share of the training's time that fast saves may take.
FAST_SHARE = 0.005
# Measured times are floats: 200.00000000000003 steps are 200.
ROUNDING = 1e-12
# More often than this a fast save is of no use: what is redone is nothing beside a restart.
FAST_STEPS, FAST_S = 5, 10.0


def interval_s(save_s: float, mtbf_s: float) -> float:
    """Return Young's interval, sqrt(2 × save × time between failures), within the bounds above.

    The upper bound is for people; it may not make saving cost more than one part in twenty.
    """
    best = (2.0 * max(save_s, 1e-3) * mtbf_s) ** 0.5
    return min(max(best, SHORTEST_S), max(LONGEST_S, 20.0 * save_s))


@cache
def node_mtbf_s() -> float:
    """Return the time between failures of one node: the median of the published rates in the
    catalog.
    """
    per_1000_days = median(row.value for row in failures.measured("per_1000_node_days"))
    return 1000 * 86400 / per_1000_days


@dataclass(frozen=True)
class CheckpointState:
    """The facts that decide whether a checkpoint is due."""

    step: int
    now_s: float
    last_step: int  # of the last save
    last_s: float
    save_s: float  # how long the last one took; a guess before the first
    nodes: int = 1  # of the run: any of them may fail


def due(state: CheckpointState, every_steps: int | None, every_s: float | None) -> bool:
    """Tell whether to save now. `every_steps` or `every_s` come from the run file; neither means
    auto.
    """
    if state.step == state.last_step:
        return False
    if every_steps is not None:
        return state.step % every_steps == 0
    if every_s is None:
        every_s = interval_s(state.save_s, node_mtbf_s() / state.nodes)
    return state.now_s - state.last_s >= every_s


def interval_ends(
    every: Every | str, step: int, elapsed_s: float, since: int | None = None
) -> bool:
    """Return whether an interval of the run file ends with `step`; "never" has no end.

    With `since`: or with a step after that one, for what is looked at less often than every step.
    """
    if not isinstance(every, Every):
        return False
    if every.steps is not None:
        return step // every.steps > (step - 1 if since is None else since) // every.steps
    return elapsed_s >= (every.seconds or 0.0)


def cost_s(stall_s: float, write_s: float) -> float:
    """Return what a save costs the training: it waits for `stall_s`, and is slowed while the
    save is written in the background for `write_s`.
    """
    return stall_s + BEHIND * write_s


@dataclass(frozen=True)
class FastSaveState:
    """The facts that decide whether a fast save is due."""

    step: int
    now_s: float
    last_step: int  # of the last save, fast or durable
    last_s: float
    step_s: float  # how long a step takes
    stall_s: float  # how long the last save held it up; 0 before the first
    seal_s: float  # how long it took until it was safe


def fast_steps(step_s: float, stall_s: float, seal_s: float) -> int:
    """Return the steps between fast saves: few, as long as they hold training up little and none
    is going on half of the time.
    """
    step_s = max(step_s, 1e-6)
    few = max(1, min(FAST_STEPS, ceil(FAST_S / step_s)))
    return max(
        few, _whole_steps(stall_s / (FAST_SHARE * step_s)), _whole_steps(2 * seal_s / step_s)
    )


def _whole_steps(steps: float) -> int:
    """Round up, but not for a rounding error of the division."""
    return ceil(steps * (1 - ROUNDING))


def fast_due(state: FastSaveState, every_steps: int | None, every_s: float | None) -> bool:
    """Tell whether to save fast now. `every_steps` or `every_s` come from the run file; neither
    means auto.
    """
    if state.step == state.last_step:
        return False
    if every_steps is not None:
        return state.step % every_steps == 0
    if every_s is not None:
        return state.now_s - state.last_s >= every_s
    return state.step - state.last_step >= fast_steps(state.step_s, state.stall_s, state.seal_s)
