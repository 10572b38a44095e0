"""One run over many numbers of accelerators: how it scales, and where each limit takes over.

The batch stays what the run file says (strong scaling), every count has its own best layout, and
each is a whole plan with its failures and its price. A count that no layout fits is a point too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan import calibration
from penstock.plan.cost.cost import named_in_catalog, no_price, price_of
from penstock.plan.dataset import DatasetSizes, needed
from penstock.plan.hardware import precision
from penstock.plan.hardware.machine import WAN, Machine
from penstock.plan.hardware.scale import over_sites, scaled
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import StepTime
from penstock.plan.make import make
from penstock.plan.plan import Plan
from penstock.plan.power.limits import BindingLimit, Measure, SiteLimit
from penstock.plan.power.site import SiteUse, fitting, site_limits, use_of
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
    number: float = 1.0  # how much of `measure` the limit is
    measure: Measure = "needed over available"
    site: SiteUse | None = None  # what it takes of a site
    losses: Mapping[str, float] = field(default_factory=dict)  # against perfect scaling

    @property
    def binds(self) -> BindingLimit:
        """Return the limit as one word and one number."""
        return limits.binding(self.limit, self.number, self.measure, self.reason)

    @property
    def sites(self) -> int:
        return self.site.sites if self.site else 1

    @property
    def watts(self) -> float | None:
        """Return the draw at work of all sites, cooling included."""
        return self.site.busy_w * self.site.sites if self.site else None

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
            "binds": self.binds.to_json(),
            "sites": self.sites,
            "watts": self.watts,
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
        if run.budget.usd is not None and price_of(run, machine) is None:
            raise PenstockError(no_price(run.budget.usd))
        if machine.site_bytes_per_s and machine.tiers[-1].name == WAN and len(machine.tiers) > 1:
            machine = replace(machine, tiers=machine.tiers[:-1])  # each count has its own
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
        machine, over = self._placed(self.scaled(count))
        job = replace(self._job(count), machine=machine)
        site = use_of(machine)
        point = ScalePoint(count, -(-count // machine.per_node), "", site=site)
        if over is not None:
            word = limits.OF_SITE[over.word]
            return replace(point, limit=word, number=over.use, reason=over.line())
        if machine.sites > 1 and machine.tiers[-1].name != WAN:
            reason = (
                f"{machine.sites} sites are needed, and nobody said what connects them: write "
                "site.link in the cluster file"
            )
            return replace(point, limit=limits.UNKNOWN_LINK, number=machine.sites, reason=reason)
        space = trainable_space(self.run)
        layout = None
        if self.run.cluster.use != "here" or job.machine.kind != "cpu":
            found = search(job, count, space, keep=1)
            if not found.best:
                limit, number, reason = _nothing(job, count, space)
                return replace(point, limit=limit, number=number, reason=reason)
            layout = found.best[0].layout
        try:  # a CPU here gets the trainer's own layout, as any plan of it does
            plan = make(self.run, machine, layout=layout, data=self.data)
        except PenstockError as error:  # so many failures that it never ends
            lost_all = replace(point, limit=limits.FAILURES, reason=str(error))
            return replace(lost_all, measure="share of the time")
        lost = limits.losses(plan.job, plan.step, self.perfect, plan.life)
        point = replace(point, plan=plan, losses=lost)
        if plan.limits.binds.word == "money":
            return replace(point, limit=limits.OVER_BUDGET, number=plan.limits.binds.number)
        limit, share = limits.limit(plan.step, lost)
        return replace(point, limit=limit, number=share, measure="share of the time")

    def _placed(self, machine: Machine) -> tuple[Machine, SiteLimit | None]:
        """Return the machine on as few sites as hold it, and the limit that not even all of them
        keep.
        """
        holds = fitting(machine)
        if holds:
            needed = -(-machine.accelerators // holds)
            machine = replace(machine, sites=min(machine.sites, needed))
        elif holds is None:
            machine = replace(machine, sites=1)
        over = [limit for limit in site_limits(machine) if not limit.fits]
        return over_sites(machine), max(over, key=lambda limit: limit.use, default=None)

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
    """Plan the run on each of these numbers of accelerators of the kind of `machine`.

    `warnings` are assumptions that were made about the machine.
    """
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


def _nothing(job: Job, count: int, space: SearchSpace) -> tuple[str, float, str]:
    """Return the limit, needed over available, and the reason where the search found no layout."""
    near = leanest(job, count, space)
    if near is None:
        reason = (
            f"{job.batch:,} sequences a step cannot be spread over {count:,} accelerators; raise "
            "train.batch_tokens or use another number of accelerators"
        )
        return limits.TOO_FEW_SEQUENCES, count / job.batch, reason
    short = near.memory.short_bytes / 2**30
    reason = f"out of memory in every layout; the nearest, {near.layout}, by {short:,.1f} GiB"
    use = near.memory.peak_bytes * near.memory.high / near.memory.capacity_bytes
    return limits.NOTHING_FITS, use, reason
