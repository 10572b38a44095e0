"""The model of least expected loss that the limits can train, by the planner's speed of each size.

Every shape of the ladder is tried on the whole machine and on halves of its nodes: fewer nodes take
longer and lose less, so money goes further where there is time. A shape is left out when not even
the accelerators' peak would bring it below the best loss so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from penstock.catalog import scaling_laws
from penstock.catalog.scaling_laws import ScalingLaw
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan import calibration
from penstock.plan.cost.cost import HourlyPrice
from penstock.plan.hardware.machine import Machine
from penstock.plan.hardware.scale import scaled
from penstock.plan.job.constants import band
from penstock.plan.job.job import Job
from penstock.plan.job.layout import NothingFits
from penstock.plan.job.outcome import StepTime
from penstock.plan.life import life
from penstock.plan.search.choose import choose_layout
from penstock.plan.step import step
from penstock.plan.within import ladder
from penstock.plan.within.limits import SpendingLimits
from penstock.run.schema.model import ModelSection
from penstock.run.schema.run import Run
from penstock.run.schema.train import choose_batch_tokens

# The law that decides: the one of the two published losses whose optimum agrees with the other
# approaches of the paper (arXiv 2404.10102).
DECIDING = "Besiroglu et al. 2024"
# Below as many tokens as parameters, and below some hundred updates, no law was fitted.
LEAST_TOKENS_PER_PARAM, LEAST_STEPS = 1.0, 200
USUAL_TOKENS_PER_PARAM = 20  # for the batch, which must not depend on the budget
# A smaller model that was trained for longer may lose this much of the loss: it is cheaper to use.
OVERTRAINED_LOSS = 1.02
FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied", "context")
Progress = Callable[[ModelShape], None]


@dataclass(frozen=True)
class AffordableModel:
    """One shape on one machine, trained for as long as the limits allow."""

    run: Run
    job: Job
    step: StepTime
    steps: int
    wall_s: float
    usd: float | None

    @property
    def params(self) -> int:
        return self.job.shape.params()

    @property
    def tokens(self) -> int:
        return self.steps * self.job.tokens

    @property
    def loss(self) -> float:
        """Return the expected loss by the law that decides."""
        return deciding_law().loss(self.params, self.tokens)

    @property
    def tokens_per_s(self) -> float:
        """Return the rate while stepping, over all ranks."""
        return self.step.tokens / self.step.step_s

    def loss_band(self) -> tuple[float, float]:
        """Return the loss between the published laws, with the error of the speed and of the
        floor.
        """
        low, high = band(self.job.shape.moe)  # of the time of a step
        found = []
        for law in scaling_laws.of_loss():
            off = law.floor_error or 0.0
            found.append(law.loss(self.params, self.tokens / low) - off)
            found.append(law.loss(self.params, self.tokens / high) + off)
        return min(found), max(found)

    def to_json(self) -> dict[str, Any]:
        shape, (low, high) = self.job.shape, self.loss_band()
        return {
            "params": self.params,
            "model": {name: getattr(shape, name) for name in FIELDS},
            "tokens": self.tokens,
            "tokens_per_param": self.tokens / self.params,
            "batch_tokens": self.job.tokens,
            "steps": self.steps,
            "loss": {
                "expected": self.loss,
                "low": low,
                "high": high,
                "unit": "nats a token",
                "by_law": {
                    law.name: law.loss(self.params, self.tokens) for law in scaling_laws.of_loss()
                },
            },
            "accelerators": self.job.layout.ranks,
            "layout": self.job.layout.to_json(),
            "tokens_per_s": self.tokens_per_s,
            "days": self.wall_s / life.DAY_S,
            "usd": self.usd,
        }


def deciding_law() -> ScalingLaw:
    return scaling_laws.find(DECIDING)


@dataclass(frozen=True)
class BudgetAnswer:
    """The best model, and a smaller one that was trained for longer where there is one."""

    best: AffordableModel
    overtrained: AffordableModel | None
    tried: tuple[AffordableModel, ...]


@dataclass
class BudgetPlanner:
    """The speed of every shape on every machine, worked out once."""

    run: Run
    machine: Machine
    price: HourlyPrice | None
    limits: SpendingLimits
    progress: Progress | None = None

    def __post_init__(self) -> None:
        base = self.run.model.base()
        self.ladder = ladder.shapes((base.vocab if base else 0) or ladder.VOCAB, self.run.sequence)
        self.machines = tuple(_halves(self.machine))
        self._jobs: dict[tuple[ModelShape, int], tuple[Run, Job, StepTime] | None] = {}

    def answer(self) -> BudgetAnswer:
        """Return the best model; raise an error where the limits are too small for any."""
        tried: list[AffordableModel] = []
        for _, shape, machine in sorted(self._floors(), key=lambda floor: floor[0]):
            least = min((one.loss for one in tried), default=inf)
            if self._floor(shape, machine) >= least:
                break
            if found := self.afford(shape, machine):
                tried.append(found)
        if not tried:
            raise PenstockError(self._too_small())
        best = min(tried, key=lambda one: (one.loss, one.params, one.job.layout.ranks))
        smaller = self._overtrained(best, tried)
        return BudgetAnswer(best, smaller, tuple(sorted(tried, key=lambda one: one.params)))

    def _floors(self) -> Iterator[tuple[float, ModelShape, Machine]]:
        for shape in self.ladder:
            for machine in self.machines:
                yield self._floor(shape, machine), shape, machine

    def _floor(self, shape: ModelShape, machine: Machine) -> float:
        """Return a loss that the shape cannot beat: all of the time at the accelerators' peak."""
        peak = max(machine.peak_flops.values(), default=inf)
        seconds = self.limits.seconds_on(machine.accelerators, self.price)
        work = shape.flops_per_token(self.run.sequence)
        tokens = seconds * machine.accelerators * peak / work
        if tokens < LEAST_TOKENS_PER_PARAM * shape.params():
            return inf
        return deciding_law().loss(shape.params(), tokens)

    def afford(self, shape: ModelShape, machine: Machine) -> AffordableModel | None:
        """Return the shape, trained for as long as the limits allow; None where it does not fit or
        there is not time for the fewest tokens.
        """
        known = self.job_of(shape, machine)
        if known is None:
            return None
        run, job, took = known
        limit_s = self.limits.seconds_on(job.layout.ranks, self.price)
        low, high = least_steps(job), int(limit_s / took.step_s) + 1
        if high <= low or wall_s(run, job, took, low) > limit_s:
            return None
        while high - low > 1:  # the wall clock never falls with more steps
            middle = (low + high) // 2
            if wall_s(run, job, took, middle) <= limit_s:
                low = middle
            else:
                high = middle
        return self._model(run, job, took, low)

    def _model(self, run: Run, job: Job, took: StepTime, steps: int) -> AffordableModel:
        seconds = wall_s(run, job, took, steps)
        hours = seconds / 3600 * job.layout.ranks
        return AffordableModel(
            run, job, took, steps, seconds, self.price.usd * hours if self.price else None
        )

    def job_of(self, shape: ModelShape, machine: Machine) -> tuple[Run, Job, StepTime] | None:
        """Return the job of a shape with its best layout and its step; None where nothing fits."""
        key = (shape, machine.accelerators)
        if key not in self._jobs:
            if self.progress:
                self.progress(shape)
            run = self._run_of(shape, machine)
            try:
                job = choose_layout(run, machine).job
            except NothingFits:
                self._jobs[key] = None
            else:
                by = calibration.factor(job, calibration.matching(job, calibration.load()))
                self._jobs[key] = run, job, calibration.applied(step.predict(job), by)
        return self._jobs[key]

    def _run_of(self, shape: ModelShape, machine: Machine) -> Run:
        """Return the run of a shape: the file's, with this model and as large a batch as its usual
        tokens and the accelerators ask for.
        """
        usual = USUAL_TOKENS_PER_PARAM * shape.params()
        batch = choose_batch_tokens(usual, self.run.sample_tokens)
        batch = max(batch, machine.accelerators * self.run.sample_tokens)
        fields = {name: getattr(shape, name) for name in FIELDS}
        length = {"tokens": usual, "batch_tokens": batch, "steps": None, "epochs": None}
        changed = {
            "model": ModelSection(**fields),
            "train": self.run.train.model_copy(update=length),
            "data": self.run.data.model_copy(update={"sequence": self.run.sequence}),
            "layout": None,
        }
        return self.run.model_copy(update=changed)

    def _overtrained(
        self, best: AffordableModel, tried: list[AffordableModel]
    ) -> AffordableModel | None:
        """Return the smallest model whose loss is nearly the best one."""
        found = None
        for shape in reversed([s for s in self.ladder if s.params() < best.params]):
            options = [self.afford(shape, machine) for machine in self.machines]
            near = [o for o in options if o and o.loss <= OVERTRAINED_LOSS * best.loss]
            if not near:
                break
            found = min(near, key=lambda one: one.loss)
            tried += [o for o in options if o]
        return found

    def _too_small(self) -> str:
        """Say what the smallest model of all would take."""
        options = []
        for machine in self.machines:
            known = self.job_of(self.ladder[0], machine)
            if known:
                options.append(self._model(*known, least_steps(known[1])))
        if not options:
            return f"no model fits on {self.machine.name}, not even the smallest"
        least = min(options, key=lambda one: one.wall_s * one.job.layout.ranks)
        money = f"{least.usd:,.2f} USD and " if least.usd is not None else ""
        return (
            f"too small for anything: the smallest model, {least.params / 1e6:.0f}M parameters on "
            f"{least.tokens / 1e6:.0f}M tokens, takes {money}{_long(least.wall_s)} on "
            f"{least.job.layout.ranks} × {least.job.machine.accelerator}"
        )


def least_steps(job: Job) -> int:
    """Return the fewest steps that a scaling law speaks of."""
    needed = LEAST_TOKENS_PER_PARAM * job.shape.params() / job.tokens
    return max(LEAST_STEPS, int(needed) + 1)


def wall_s(run: Run, job: Job, took: StepTime, steps: int) -> float:
    """Return the wall clock of so many steps, with starts, saves, evaluations and failures."""
    return life.predict(run, job, took, steps).wall_s


def _halves(machine: Machine) -> Iterator[Machine]:
    """Yield the machine, then half of its nodes, until one is left."""
    nodes = machine.nodes
    yield machine
    while nodes > 1 and machine.nodes * machine.per_node == machine.accelerators:
        nodes //= 2
        yield replace(scaled(machine, nodes * machine.per_node), name=machine.name)


def _long(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} h"
