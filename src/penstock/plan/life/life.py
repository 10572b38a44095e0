"""The life of a run: what failures, saves, evaluations and starts add to its steps.

Mean values, in closed form. Failures come at a constant rate, so U seconds of work that lose R
seconds at each failure take U × (exp(x) − 1) / x with x = 2 × rate × R: to first order half an
interval for each failure, and right where that breaks down. A restart can fail as well. The cost
of a failure, by cause, is in `failing.py`; only `penstock simulate` shows the distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, expm1

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import Band, StepTime
from penstock.plan.life import recovery, times
from penstock.plan.life.failing import FailureLoss, failure_loss
from penstock.plan.life.pace import SavePace, save_pace
from penstock.plan.life.rates import FailureRates, range_of_rates, usual_rates
from penstock.plan.life.recovery import RecoveryCosts
from penstock.run.schema.run import Run

# Past this many mean times between failures in one stretch, no run gets through.
HOPELESS = 40.0
SLOWEST = 1e-3  # of the full speed: a run below it never ends
WIDEST = 10.0  # times as long: where a run with the highest rate would never end
DAY_S = 86400.0


@dataclass(frozen=True)
class RunLife:
    """A run from its first process to its last; seconds are wall clock."""

    ledger: Ledger  # predicted; adds up to wall_s × accelerators
    accelerators: int
    nodes: int
    steps: int
    recovery: RecoveryCosts
    pace: SavePace
    interval_s: float  # between checkpoints
    saves: int
    evaluations: int
    evaluate_s: float  # all of them, where nothing fails
    interruptions: float  # expected
    loss: FailureLoss  # by one of them

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
    run: Run,
    job: Job,
    step: StepTime,
    steps: int,
    held_out_tokens: int | None = None,
    rates: FailureRates | None = None,
) -> RunLife:
    """Predict the ledger of `steps` steps that each take `step`; the dataset may hold out fewer
    tokens than an evaluation would read. `rates` are of failures, by default the usual ones.
    """
    cost = recovery.recovery_costs(run, job)
    pace = save_pace(run, step.step_s, cost)
    work_s = steps * step.step_s
    evaluations, evaluate_s = _evaluate(run, job, step, steps, held_out_tokens)
    saves = max(1, ceil(work_s / pace.interval_s - 1e-9))
    between_s = (work_s + evaluate_s) / saves
    # A save is not begun before the last one is written.
    stalls_s = (saves - 1) * max(pace.stall_s, cost.save_s - between_s)
    stalls_s += steps // pace.fast_steps * pace.stall_s if pace.fast_steps else 0.0
    quiet_s = work_s + evaluate_s + stalls_s
    loss = failure_loss(
        run,
        job,
        step.step_s,
        cost,
        replace(pace, interval_s=between_s + stalls_s / saves),
        rates or usual_rates(job.machine),
        quiet_s,
    )
    spent = _spend(run, job, loss, quiet_s)
    # Those who work do the whole batch: each spends `active / speed` of its usual time.
    each, slowed = loss.active / loss.speed, loss.active / (loss.speed * loss.straggling)
    per_rank = {Cause(name): steps * seconds * each for name, seconds in step.causes.items()}
    per_rank[Cause.PEER_WAIT] += work_s * (slowed - each)
    per_rank[Cause.DATA_WAIT] += loss.data_wait * spent.at_risk_s
    per_rank |= {
        Cause.CHECKPOINT: stalls_s * slowed + cost.save_s,
        Cause.EVALUATE: evaluate_s * slowed,
        Cause.STARTUP: cost.startup_s + spent.regroup_s * (cost.again_s + cost.load_s),
        Cause.DOWN: spent.down_s + spent.at_risk_s * (1 - loss.active),
        Cause.REDO: spent.redo_s * loss.active,
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
        pace=pace,
        interval_s=between_s,
        saves=saves,
        evaluations=evaluations,
        evaluate_s=evaluate_s,
        interruptions=loss.per_s * ledger.total / ranks,
        loss=loss,
    )


def with_pauses(lived: RunLife, wall_s: float) -> RunLife:
    """Return a life that is drawn out to `wall_s` by pauses, and by hours on fewer accelerators."""
    seconds = dict(lived.ledger.seconds)
    seconds[Cause.DOWN] += max(0.0, wall_s * lived.accelerators - lived.ledger.total)
    return replace(lived, ledger=replace(lived.ledger, seconds=seconds))


def failure_bands(
    run: Run,
    job: Job,
    step: StepTime,
    lived: RunLife,
    held_out_tokens: int | None = None,
) -> Iterator[tuple[Band, Band]]:
    """Yield the factors of the run's length and of its effective share that four of five fleets lie
    between, for each rate that nobody has stated.
    """
    for low, high in range_of_rates(job.machine):
        few = predict(run, job, step, lived.steps, held_out_tokens, low)
        try:
            many = predict(run, job, step, lived.steps, held_out_tokens, high)
            longest, worst = many.wall_s / lived.wall_s, many.effective / lived.effective
        except PenstockError:
            longest, worst = WIDEST, 1 / WIDEST
        yield (
            Band(min(few.wall_s / lived.wall_s, 1.0), min(max(longest, 1.0), WIDEST)),
            Band(min(worst, 1.0), max(few.effective / lived.effective, 1.0)),
        )


@dataclass(frozen=True)
class _FailureTime:
    """Seconds of wall clock that failures add."""

    at_risk_s: float  # steps, saves and evaluations, those done again too
    redo_s: float
    down_s: float
    regroup_s: float  # times that all start again to use a node that is back


def _spend(run: Run, job: Job, loss: FailureLoss, quiet_s: float) -> _FailureTime:
    """Return what failures add to a run that would take `quiet_s`."""
    speed = loss.speed * loss.straggling
    if speed < SLOWEST:
        raise PenstockError(
            f"this run would never end: so many nodes are in repair that it has {100 * speed:.2g} "
            f"% of its speed. Give spares (guard.spares = {run.guard.spares}), or check "
            "failures.node_mtbf and failures.repair in the cluster file"
        )
    up_s = quiet_s / speed
    x = _bounded(2 * loss.per_s * min(loss.redo_s, up_s / 2), run)
    at_risk_s = up_s * (expm1(x) / x if x > 1e-9 else 1.0)
    if job.machine.stall_s is None:
        tries = expm1(_bounded(loss.per_s * loss.down_s, run))
    else:  # each failure adds its own, those that come meanwhile too
        share = loss.per_s * loss.down_s
        tries = share / (1 - share) if share < 1 else _bounded(2 * HOPELESS, run)
    return _FailureTime(
        at_risk_s, at_risk_s - up_s, at_risk_s * tries, at_risk_s * loss.regroups_per_s
    )


def _evaluate(
    run: Run, job: Job, step: StepTime, steps: int, held_out_tokens: int | None
) -> tuple[int, float]:
    """Count the evaluations (before the first step, when due, at the end) and their seconds."""
    every = run.evaluate.every
    if every == "never" or not run.evaluate.holdout:
        return 0, 0.0
    if every.steps is not None:
        number = 1 + ceil(steps / every.steps)
    else:
        number = 2 + int(steps * step.step_s / (every.seconds or 1.0))
    tokens = min(run.evaluate.tokens, held_out_tokens or run.evaluate.tokens)
    # Every rank reads its part, in whole sequences; compiled layers take whole microbatches.
    sequences = ceil(max(1, tokens // job.sequence) / job.data_ways)
    if times.compiles(run, job.machine):
        sequences = ceil(sequences / job.layout.microbatch) * job.layout.microbatch
    part = sequences / (job.layout.microbatch * max(1, job.microbatches))  # of a step's
    forward_s = part * times.FORWARD_SHARE * step.inner_s
    each_s = times.start_times(job.machine).evaluate_s + forward_s
    return number, number * each_s * job.machine.evaluate_factor


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
            f"each loses {life.loss.redo_s:.3g} s of steps (redo) and {life.loss.down_s:.3g} s "
            "until steps go on (down), by the mean of all causes",
            f"with the nodes that are in repair, steps run at {100 * life.loss.speed:.4g} % of "
            f"their speed; beside stragglers, at {100 * life.loss.straggling:.4g} %",
            "the tail, and what spares are worth: `penstock simulate`",
        ),
        "effective": (
            f"{life.effective:.4f} = 1 − (startup + checkpoint + down + redo) / total",
            *cost.notes["save_s"],
            *cost.notes["copy_s"],
            *cost.notes["restart_s"],
        ),
        "useful": (f"{life.useful:.4f} = compute / total",),
        "evaluations": (
            f"{life.evaluations} evaluations, {life.evaluate_s:.4g} s in all: forward only, a "
            "third of a step's time per token, and a start of each",
        ),
    }
