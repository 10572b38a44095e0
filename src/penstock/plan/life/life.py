"""The life of a run: what failures, saves, evaluations and starts add to its steps.

Failures come at a constant rate, so a stretch of L seconds between two checkpoints is interrupted
exp(L / mtbf) − 1 times on average, and each time loses the mean time to failure within L: close to
half of it, less when failures are frequent. A restart can fail as well. To first order this is
interruptions × (half the interval + restart), and it stays right where that breaks down.
"""

from dataclasses import dataclass
from math import ceil, exp, expm1

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import StepTime
from penstock.plan.life import recovery
from penstock.plan.life.recovery import RecoveryCosts
from penstock.policy import checkpoint as policy
from penstock.run.schema.run import Run

# Forward alone, of the time of forward and backward: a third of the matmuls.
FORWARD_SHARE = 1 / 3
# Past this many mean times between failures in one stretch, no run gets through.
HOPELESS = 40.0
DAY_S = 86400.0


@dataclass(frozen=True)
class RunLife:
    """A run from its first process to its last; seconds are wall clock."""

    ledger: Ledger  # predicted; adds up to wall_s × accelerators
    accelerators: int
    nodes: int
    steps: int
    recovery: RecoveryCosts
    interval_s: float  # between checkpoints
    saves: int
    evaluations: int
    interruptions: float  # expected
    lost_s: float  # of steps, by one interruption
    down_s: float  # until steps go on after one interruption

    @property
    def wall_s(self) -> float:
        return self.ledger.total / self.accelerators

    @property
    def days(self) -> float:
        return self.wall_s / DAY_S

    @property
    def effective(self) -> float:
        return self.ledger.effective or 0.0

    @property
    def useful(self) -> float:
        return self.ledger.useful or 0.0


def predict(
    run: Run, job: Job, step: StepTime, steps: int, held_out_tokens: int | None = None
) -> RunLife:
    """Predict the ledger of `steps` steps that each take `step`; the dataset may hold out fewer
    tokens than an evaluation would read.
    """
    cost = recovery.recovery_costs(run, job)
    work_s = steps * step.step_s
    evaluations, evaluate_s = _evaluate(run, step, steps, held_out_tokens)
    interval_s = _interval_s(run, step, cost)
    saves = max(1, ceil(steps / max(1, ceil(interval_s / step.step_s - 1e-9))))
    between_s = (work_s + evaluate_s) / saves
    # A save is not begun before the last one is written.
    stalls_s = (saves - 1) * max(cost.stall_s(step.step_s), cost.save_s - between_s)
    struck, lost_s = _struck(between_s + stalls_s / saves, cost.mtbf_s, run)
    lost_s += min(cost.save_s, between_s)  # the newest save is safe only now
    restarts = exp(_bounded(cost.restart_s / cost.mtbf_s, run))  # tries until one holds
    down_s = cost.mtbf_s * expm1(cost.restart_s / cost.mtbf_s)

    per_rank = {Cause(name): steps * seconds for name, seconds in step.causes.items()}
    per_rank |= {
        Cause.CHECKPOINT: stalls_s + cost.save_s + _fast_s(run, step, steps, cost),
        Cause.EVALUATE: evaluate_s,
        Cause.STARTUP: cost.startup_s,
        Cause.DOWN: saves * struck * down_s,
        Cause.REDO: saves * struck * lost_s,
    }
    ranks = job.layout.ranks
    ledger = Ledger(
        {cause: seconds * ranks for cause, seconds in per_rank.items()},
        provenance={"seconds": Provenance("estimated", "predicted by the planner")},
    )
    return RunLife(
        ledger=ledger,
        accelerators=ranks,
        nodes=recovery.nodes_of(job),
        steps=steps,
        recovery=cost,
        interval_s=between_s,
        saves=saves,
        evaluations=evaluations,
        interruptions=saves * struck * restarts,
        lost_s=lost_s,
        down_s=down_s,
    )


def _interval_s(run: Run, step: StepTime, cost: RecoveryCosts) -> float:
    asked = run.guard.checkpoint
    if asked == "auto":
        takes_s = policy.cost_s(cost.stall_s(step.step_s), cost.save_s)
        return policy.interval_s(takes_s, cost.mtbf_s)
    return asked.steps * step.step_s if asked.steps is not None else asked.seconds or 0.0


def _fast_s(run: Run, step: StepTime, steps: int, cost: RecoveryCosts) -> float:
    """Return the seconds that in-memory copies hold training up, at the pace that the policy
    keeps to.
    """
    asked, stall_s = run.guard.fast, cost.stall_s(step.step_s)
    if asked == "never":
        return 0.0
    if asked == "auto":
        every = policy.fast_steps(step.step_s, stall_s, cost.copy_s)
    else:
        every = asked.steps or max(1, int((asked.seconds or 0.0) / step.step_s))
    return steps // every * stall_s


def _evaluate(
    run: Run, step: StepTime, steps: int, held_out_tokens: int | None
) -> tuple[int, float]:
    """Count the evaluations (before the first step, when due, at the end) and their seconds."""
    every = run.evaluate.every
    if every == "never" or not run.evaluate.holdout:
        return 0, 0.0
    if every.steps is not None:
        times = 1 + ceil(steps / every.steps)
    else:
        times = 2 + int(steps * step.step_s / (every.seconds or 1.0))
    tokens = min(run.evaluate.tokens, held_out_tokens or run.evaluate.tokens)
    return times, times * tokens * FORWARD_SHARE * step.step_s / step.tokens


def _struck(stretch_s: float, mtbf_s: float, run: Run) -> tuple[float, float]:
    """Return the expected failures until a stretch is through, and the seconds that each of them
    loses.
    """
    x = _bounded(stretch_s / mtbf_s, run)
    if x < 1e-4:  # the exact form below subtracts two nearly equal numbers there
        return expm1(x), stretch_s * (0.5 - x / 12)
    return expm1(x), mtbf_s - stretch_s / expm1(x)


def _bounded(x: float, run: Run) -> float:
    if x > HOPELESS:
        raise PenstockError(
            f"this run would never end: a failure comes {x:.0f} times, on average, in the time "
            f'between two checkpoints or of one restart. Write guard.checkpoint = "auto" (it is '
            f'"{run.guard.checkpoint}"), use fewer nodes, or check failures.node_mtbf in the '
            "cluster file"
        )
    return x


def derivation(run: Run, life: RunLife, step: StepTime) -> dict[str, tuple[str, ...]]:
    """Explain each number, by its name in a plan."""
    cost, asked = life.recovery, run.guard.checkpoint
    how = (
        "Young's interval from what a save costs and mtbf_s, bounded"
        if asked == "auto"
        else f'"{asked}"'
    )
    wall = (
        f"{life.wall_s:.5g} s = {life.steps} steps × {step.step_s:.4g} s + saves + evaluations + "
        "start-up + down + redo (see `ledger.seconds`)",
    )
    return cost.notes | {
        "wall_s": wall,
        "days": (f"{life.days:.4g} days = wall_s / 86400", *wall),
        "checkpoint_interval_s": (
            f"{life.interval_s:.4g} s of work between saves: guard.checkpoint is {how}; "
            f"{life.saves} saves",
        ),
        "saves": (f"{life.saves} = work / checkpoint_interval_s, rounded up",),
        "interruptions": (
            f"{life.interruptions:.3g} expected while steps, saves and restarts run",
            *cost.notes["mtbf_s"],
            f"each loses {life.lost_s:.3g} s of steps (redo) and {life.down_s:.3g} s until steps "
            "go on (down)",
        ),
        "effective": (
            f"{life.effective:.4f} = 1 − (startup + checkpoint + down + redo) / total",
            *cost.notes["save_s"],
            *cost.notes["copy_s"],
            *cost.notes["restart_s"],
        ),
        "useful": (f"{life.useful:.4f} = compute / total",),
        "evaluations": (
            f"{life.evaluations} evaluations, forward only: a third of a step's time per token",
        ),
    }
