"""`train.sync.local_steps = "auto"`: the planner chooses how replicas agree, from the links.

Every way that was measured is predicted on the machine of the run, and `policy/agreement.py` takes
one. Fields that the run file sets stay: codec, parts, optimizer and the number of replicas.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.plan.hardware import precision
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.hardware.machine import INSIDE, Machine
from penstock.plan.job import legal
from penstock.plan.job.job import Job
from penstock.plan.job.layout import IllegalLayout, NothingFits
from penstock.plan.memory import memory
from penstock.plan.search.choose import choose_layout, job_of
from penstock.plan.step import step
from penstock.plan.sync import SyncAccount, account, exchange_link
from penstock.policy import agreement as policy
from penstock.policy.agreement import LEAST_ROUNDS, LENGTHS, STREAMED, AgreementOption
from penstock.run.diff import with_agreement
from penstock.run.schema.apart import apart_problems
from penstock.run.schema.run import Run
from penstock.run.schema.train import OF_GRADIENTS, SyncSection
from penstock.style import format_count

FIELD = 'train.sync.local_steps = "auto"'
DIFFERENCES = ("int4", "int2")  # codecs of differences that are looked at


@dataclass(frozen=True)
class Agreement:
    """The choice, and the ways that were looked at."""

    chosen: AgreementOption | None  # None: there is nothing to choose
    replicas: int
    why: str
    link: str = ""
    options: tuple[AgreementOption, ...] = ()

    def words(self) -> str:
        """Say in one line what was chosen and why."""
        if self.chosen is None:
            return f"{FIELD} is 1: {self.why}"
        one = self.chosen
        plain = next((o for o in self.options if (o.local_steps, o.codec) == (1, "none")), None)
        beside = ""
        if plain and plain is not one:
            beside = f" (plain data parallel: {plain.utilization:.0%})"
        loss = "not known"
        if one.loss_low is not None and one.loss_high is not None:
            loss = f"{100 * one.loss_low:+.1f} to {100 * one.loss_high:+.1f} %"
        return (
            f"{FIELD} is {one.local_steps}: {self.replicas} replicas, {one.name}, compute "
            f"{one.utilization:.0%} of the time{beside} over {self.link}, with "
            f"{one.fewer_bytes:,.0f} × fewer bytes; loss {loss}; {self.why}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "chosen": asdict(self.chosen) if self.chosen else None,
            "replicas": self.replicas,
            "why": self.why,
            "link": self.link,
            "options": [asdict(option) for option in self.options],
        }


def settled_here(run: Run, vocab: int) -> tuple[Run, Agreement | None]:
    """Settle a run on the machine that its file names; for a launch, whose data is known."""
    if not run.train.sync.auto:
        return run, None
    try:
        machine = machine_for(run).machine
    except PenstockError as error:
        raise PenstockError(f"{FIELD}: {error}. Or write a number of steps") from None
    return settled(run, machine, vocab)


def settled(run: Run, machine: Machine, vocab: int | None = None) -> tuple[Run, Agreement | None]:
    """Return the run with its agreement chosen, and the choice; None where the file says it."""
    if not run.train.sync.auto:
        return run, None
    if run.model.module:
        raise PenstockError(
            f"{FIELD}: the planner does not know your own module; write a number of steps"
        )
    run, _ = precision.settled(run, machine)
    base = run.model.base()
    known = vocab or (base.vocab if base else 0) or legal.SOME_VOCAB
    job = _job(run, machine, known)
    if job is None:
        why = "the replicas have no link between nodes to save"
        return with_agreement(run, _section(run, 1, "none", 1), run.train.optimizer, None), (
            Agreement(None, 1, why)
        )
    replicas = job.agreeing
    options = tuple(_options(run, job))
    chosen, why = policy.choose(options)
    settled_run = with_agreement(
        run,
        _section(run, chosen.local_steps, chosen.codec, chosen.parts),
        chosen.optimizer,
        replicas if chosen.local_steps > 1 else None,
    )
    return settled_run, Agreement(chosen, replicas, why, _link(job), options)


def _job(run: Run, machine: Machine, vocab: int) -> Job | None:
    """Return the job with replicas across the slowest links; None where there are none."""
    if run.sites:
        tried = with_agreement(run, _section(run, 30, "int4", 1), run.train.optimizer, None)
        return choose_layout(tried, machine, vocab).job
    asked = run.layout.replicate if run.layout else None
    counts: tuple[int, ...]
    if asked:
        counts = (asked,)
    else:
        counts = tuple(n for n in reversed(legal.divisors(_domains(machine))) if n > 1)
    for count in counts:
        if count < 2 or count > run.batch_samples:
            continue
        tried = with_agreement(run, _section(run, 30, "int4", 1), run.train.optimizer, count)
        try:
            job = choose_layout(tried, machine, vocab).job
        except (NothingFits, IllegalLayout):
            continue
        if memory.predict(job).fits or count == counts[-1]:
            return job
    return None


def _domains(machine: Machine) -> int:
    """Return how many parts of the machine only the slowest network joins: sites, racks or nodes.
    1: it is one node.
    """
    tiers = machine.tiers
    if machine.nodes == 1 or tiers[-1].name in INSIDE:
        return 1
    inside = tiers[-2].size if len(tiers) > 1 else machine.per_node
    return max(1, machine.accelerators // inside)


def _section(run: Run, local_steps: int, codec: str, parts: int) -> SyncSection:
    changed = {"local_steps": local_steps, "compress": codec, "stream": parts}
    return run.train.sync.model_copy(update=changed)


def _options(run: Run, job: Job) -> Iterator[AgreementOption]:
    """Predict every way that the file leaves open."""
    steps = _steps(run)
    for local_steps, codec, parts in _ways(run, steps):
        optimizer = _optimizer(run, local_steps)
        replicas = job.layout.replicate
        tried = with_agreement(run, _section(run, local_steps, codec, parts), optimizer, replicas)
        if any(apart_problems(tried)):
            continue
        one = job_of(tried, job.machine, job.shape, job.layout)
        time = step.predict(one)
        found = account(tried, one, time, steps)
        assert found
        yield _option(found, optimizer, time.step_s)


def _option(found: SyncAccount, optimizer: str, step_s: float) -> AgreementOption:
    return AgreementOption(
        local_steps=found.local_steps,
        codec=found.codec,
        parts=found.stream,
        optimizer=optimizer,
        utilization=found.utilization,
        loss_low=found.loss.low,
        loss_high=found.loss.high,
        fewer_bytes=found.fewer,
        step_s=step_s,
    )


def _ways(run: Run, steps: int) -> Iterator[tuple[int, str, int]]:
    """Yield local steps, codec and parts that the file allows."""
    own = run.train.sync
    given = own.compress if "compress" in own.model_fields_set else None
    for codec in (given,) if given else OF_GRADIENTS:
        if codec in OF_GRADIENTS and "stream" not in own.model_fields_set and not run.sites:
            yield 1, codec, 1
    for local_steps in LENGTHS:
        if local_steps * LEAST_ROUNDS > steps:
            continue
        for codec in (given,) if given else DIFFERENCES:
            parts = (own.stream,) if "stream" in own.model_fields_set else (1, STREAMED)
            if run.sites:  # exchange the whole model
                parts = (1,)
            for count in parts:
                yield local_steps, codec, count


def _optimizer(run: Run, local_steps: int) -> str:
    """Return the file's optimizer, or for local steps Muon, whose averages cost less loss."""
    if "optimizer" in run.train.model_fields_set or local_steps == 1 or run.model.adapter:
        return run.train.optimizer
    return "muon"


def _steps(run: Run) -> int:
    """Return the steps of the run; many where only its dataset tells them."""
    if run.train.epochs:
        return 100 * LENGTHS[-1]
    return run.steps()


def _link(job: Job) -> str:
    link = exchange_link(job)
    return f"{link.tier} at {format_count(link.bytes_per_s)}B/s ({link.source})"
