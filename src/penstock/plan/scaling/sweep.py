"""One run over many numbers of accelerators: how it scales, and where each limit takes over.

The batch stays what the run file says (strong scaling), every count has its own best layout, and
each is a whole plan with its failures and its price. A count that no layout fits is a point too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan import calibration
from penstock.plan.cost.cost import named_in_catalog
from penstock.plan.dataset import DatasetSizes, needed
from penstock.plan.hardware import precision
from penstock.plan.hardware.machine import Machine
from penstock.plan.hardware.scale import scaled
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import StepTime
from penstock.plan.make import make
from penstock.plan.plan import Plan
from penstock.plan.scaling import limits
from penstock.plan.search.choose import choose_layout
from penstock.plan.search.search import SearchSpace, leanest, search, trainable_space
from penstock.plan.step import step
from penstock.run.schema.run import Run

Progress = Callable[[int, int], None]  # accelerators under way, counts done


@dataclass(frozen=True)
class ScalePoint:
    """The run on one number of accelerators: its plan, or why there is none."""

    accelerators: int
    nodes: int
    limit: str
    plan: Plan | None = None
    reason: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)  # against perfect scaling

    @property
    def tokens_per_s(self) -> float | None:
        """Return the rate while stepping, over all ranks."""
        return self.plan.tokens_per_s if self.plan else None

    @property
    def shares(self) -> dict[str, float]:
        """Return the shares of accelerator-time by cause over the whole run; they add up to 1."""
        if self.plan is None:
            return {}
        ledger = self.plan.life.ledger
        return {str(cause): ledger.share(cause) or 0.0 for cause in Cause}

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        speed = plan.tokens_per_s if plan else None
        return {
            "accelerators": self.accelerators,
            "nodes": self.nodes,
            "fits": plan is not None,
            "layout": plan.job.layout.to_json() if plan else None,
            "step_s": plan.step.step_s if plan else None,
            "tokens_per_s": speed,
            "tokens_per_s_each": speed / self.accelerators if speed else None,
            "mfu": plan.mfu if plan else None,
            "days": plan.life.days if plan else None,
            "days_late": (plan.span("days") or (None, None))[1] if plan else None,
            "effective": plan.life.effective if plan else None,
            "usd": plan.bill.usd if plan else None,
            "shares": self.shares,
            "bottleneck": plan.bottleneck if plan else None,
            "limit": self.limit,
            "losses": dict(self.losses),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Takeover:
    """The place where one limit follows another."""

    accelerators: int
    limit: str
    before: str

    def __str__(self) -> str:
        return f"from {self.accelerators:,} accelerators: {self.limit}, before that {self.before}"


@dataclass(frozen=True)
class ScalingSweep:
    """Points by number of accelerators."""

    name: str  # of the run
    accelerator: str
    points: tuple[ScalePoint, ...]
    perfect_each: float  # tokens/s of one accelerator in perfect scaling
    warnings: tuple[str, ...] = ()

    @property
    def takeovers(self) -> tuple[Takeover, ...]:
        return tuple(
            Takeover(new.accelerators, new.limit, old.limit)
            for old, new in pairwise(self.points)
            if old.limit != new.limit
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "accelerator": self.accelerator,
            "perfect_tokens_per_s_each": self.perfect_each,
            "points": [point.to_json() for point in self.points],
            "takeovers": [str(takeover) for takeover in self.takeovers],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class ScalePlanner:
    """A run and a kind of machine; `at` plans it on any number of them."""

    run: Run
    machine: Machine
    data: DatasetSizes | None
    notes: tuple[str, ...] = ()  # what of the data is not known

    @classmethod
    def of(cls, run: Run, machine: Machine) -> "ScalePlanner":
        known = needed(run)
        run, notes = precision.settled(known.run, machine)
        if run.train.sync.auto:
            notes = [*notes, 'train.sync.local_steps = "auto" is taken as 1 at every scale']
        return cls(run, machine, known.sizes, (*known.notes, *notes))

    @cached_property
    def perfect(self) -> StepTime:
        """Return a step of one accelerator with room for all of it, as calibrated as the others."""
        job = self._job(1)
        records = calibration.matching(job, calibration.load())
        fastest = min(map(step.predict, limits.alone(job)), key=lambda found: found.step_s)
        return calibration.applied(fastest, calibration.factor(job, records))

    @property
    def perfect_s(self) -> float:
        """Return the least accelerator-seconds that the steps of the whole run need."""
        steps = self.run.steps(self.data.samples if self.data else None)
        return steps * self.perfect.step_s

    def scaled(self, count: int) -> Machine:
        name = self.run.cluster.use if named_in_catalog(self.run) else None
        return scaled(self.machine, count, name)

    def at(self, count: int) -> ScalePoint:
        job = self._job(count)
        nodes = -(-count // job.machine.per_node)
        space = trainable_space(self.run)
        layout = None
        if self.run.cluster.use != "here" or job.machine.kind != "cpu":
            found = search(job, count, space, keep=1)
            if not found.best:
                limit, reason = _nothing(job, count, space)
                return ScalePoint(count, nodes, limit, reason=reason)
            layout = found.best[0].layout
        try:  # a CPU here gets the trainer's own layout, as any plan of it does
            plan = make(self.run, job.machine, layout=layout, data=self.data)
        except PenstockError as error:  # so many failures that it never ends
            return ScalePoint(count, nodes, limits.FAILURES, reason=str(error))
        lost = limits.losses(plan.job, plan.step, self.perfect, plan.life)
        return ScalePoint(count, nodes, limits.limit(plan.step, lost), plan, losses=lost)

    def _job(self, count: int) -> Job:
        vocab = self.data.vocab if self.data else None
        return choose_layout(self.run, self.scaled(count), vocab, Layout(replicate=count)).job


def sweep(
    run: Run,
    machine: Machine,
    counts: Sequence[int],
    progress: Progress | None = None,
    warnings: Sequence[str] = (),
) -> ScalingSweep:
    """`run` on each of these numbers of accelerators of the kind of `machine`; `warnings` are what
    finding the machine had to assume."""
    planner = ScalePlanner.of(run, machine)
    for count in counts:  # a machine that cannot grow is told before the work
        planner.scaled(count)
    points = []
    for done, count in enumerate(counts):
        if progress:
            progress(count, done)
        points.append(planner.at(count))
    perfect = planner.perfect
    aside = "the file's [layout] is left aside: every count has the best layout of its own"
    return ScalingSweep(
        name=run.name,
        accelerator=machine.accelerator,
        points=tuple(points),
        perfect_each=perfect.tokens / perfect.step_s,
        warnings=(*warnings, *planner.notes, *([aside] if run.layout else [])),
    )


def _nothing(job: Job, count: int, space: SearchSpace) -> tuple[str, str]:
    """Return the limit and the reason where the search found no layout."""
    near = leanest(job, count, space)
    if near is None:
        reason = (
            f"{job.batch:,} sequences a step cannot be spread over {count:,} accelerators; raise "
            "train.batch_tokens or use another number of accelerators"
        )
        return limits.TOO_FEW_SEQUENCES, reason
    short = near.memory.short_bytes / 2**30
    reason = f"out of memory in every layout; the nearest, {near.layout}, by {short:,.1f} GiB"
    return limits.NOTHING_FITS, reason
