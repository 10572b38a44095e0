"""A whole plan from the two models of a step: life, power, money, advice, bands, budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan import advice, derivation, sync
from penstock.plan.advice import StepModels
from penstock.plan.agreement import Agreement
from penstock.plan.cost import cost
from penstock.plan.hours.supply import plan_hours, with_hours
from penstock.plan.job.job import RATE_OF, Job
from penstock.plan.job.outcome import Band, PeakMemory, StepTime
from penstock.plan.life import life
from penstock.plan.life.life import RunLife
from penstock.plan.plan import Plan
from penstock.plan.power import power, site
from penstock.plan.search.sensitivity import LayoutOption, sensitivities
from penstock.plan.verdict import verdict
from penstock.run.schema.run import Run

# The causes whose time is as uncertain as a step's; starting, saving and failing are not.
STEPPING = (
    Cause.COMPUTE,
    Cause.COMMUNICATE,
    Cause.BUBBLE,
    Cause.PEER_WAIT,
    Cause.DATA_WAIT,
    Cause.EVALUATE,
    Cause.REDO,
)


@dataclass(frozen=True)
class Bands:
    """The factors by which the two models were off, learnt from residuals."""

    step: Band
    memory: Band


def assemble(
    run: Run,
    job: Job,
    step: StepTime,
    memory: PeakMemory,
    models: StepModels,
    bands: Bands,
    steps: int,
    warnings: Sequence[str] = (),
    options: tuple[LayoutOption, ...] = (),
    rejected: tuple[LayoutOption, ...] = (),
    held_out_tokens: int | None = None,
    agreed: Agreement | None = None,
    begins_s: float | None = None,
) -> Plan:
    """Assemble the plan of `steps` steps of `job`. `options` and `rejected` are the layouts of a
    search. `begins_s` is when the run starts (unix seconds), for the hours of its site.
    """
    worked = life.predict(run, job, step, steps, held_out_tokens)  # without pauses
    draw = power.power_draw(job.machine, step, job.machine.cooling)
    hours = plan_hours(run, job, worked, draw, begins_s)
    lived = with_hours(worked, hours)
    off_s = hours.off_s * lived.accelerators if hours else 0.0
    ledger = power.with_joules(lived.ledger, draw, off_s) if draw else lived.ledger
    bill = cost.bill(run, job.machine, ledger, hours.amounts() if hours else None)
    sensitivity = sensitivities(
        job,
        step,
        models.step_of,
        lambda j, s: life.predict(run, j, s, steps, held_out_tokens).wall_s,
        (*options, *rejected),
    )
    mfu, mfu_of = _mfu(job, step)
    exchanged = sync.account(run, job, step, steps)
    over = _budget(run, lived, bill.usd)
    return Plan(
        name=run.name,
        job=job,
        step=step,
        memory=memory,
        life=lived,
        bill=bill,
        mfu=mfu,
        mfu_of=mfu_of,
        bands=_bands(
            bands,
            lived,
            bill,
            tuple(life.failure_bands(run, job, step, worked, held_out_tokens)),
            draw.band if draw else power.BAND,
        ),
        bottleneck=advice.bottleneck(job, step),
        sensitivity=sensitivity,
        next=advice.next_change(job, step, memory, worked, sensitivity, models, options),
        over_budget=(*over, *(hours.over_budget() if hours else ())),
        hours=hours,
        warnings=(
            *warnings,
            *bill.warnings,
            *(hours.warnings(cost.price_of(run, job.machine), job.layout.ranks) if hours else ()),
            *_assumed(run, lived),
            *site.power_notes(job.machine),
        ),
        options=options,
        rejected=rejected,
        sync=exchanged,
        agreement=agreed,
        limits=verdict(
            step, memory, worked, bill.usd, run.budget.usd, site.site_limits(job.machine)
        ),
        site=site.use_of(job.machine),
        notes=derivation.notes(run, job, step, memory, lived, bill, draw, (mfu, mfu_of))
        | sync.derivation(exchanged),
    )


def _mfu(job: Job, step: StepTime) -> tuple[float | None, str]:
    kind = "fp8" if RATE_OF.get(job.precision, job.precision) == "fp8" else "bf16"
    peak = job.machine.peak_flops.get(kind)
    if not peak:
        return None, f"no published {kind} peak of {job.machine.accelerator}"
    share = step.model_flops / step.step_s / (job.layout.ranks * peak)
    return share, f"{kind} peak of {job.machine.accelerator}, {peak / 1e12:g} TFLOP/s dense"


def _bands(
    bands: Bands,
    lived: RunLife,
    bill: cost.Bill,
    failing: Sequence[tuple[Band, Band]],
    drawn: Band,
) -> dict[str, Band]:
    step = bands.step
    moving = lived.ledger.share(*STEPPING) or 0.0
    days = Band(1 + (step.low - 1) * moving, 1 + (step.high - 1) * moving)
    effective = Band(1.0, 1.0)
    for longer, share in failing:  # the rates that nobody has stated
        days, effective = product_band(days, longer), product_band(effective, share)
    faster = Band(1 / step.high, 1 / step.low)
    energy = product_band(days, drawn)
    return {
        "step_s": step,
        "tokens_per_s": faster,
        "mfu": faster,
        "memory.peak_bytes": bands.memory,
        "days": days,
        "effective": effective,
        "usd": energy if bill.price.startswith("electricity") else days,
        "energy_kwh": energy,
        "co2e_kg": energy,
    }


def product_band(one: Band, other: Band) -> Band:
    """Return the band of a product of two numbers that err independently."""
    return Band(
        exp(-hypot(log(one.low), log(other.low))), exp(hypot(log(one.high), log(other.high)))
    )


def _budget(run: Run, lived: RunLife, usd: float | None) -> tuple[str, ...]:
    """Return what is over [budget], one line each."""
    limit, over = run.budget, []
    if limit.hours is not None and lived.wall_s > limit.hours * 3600:
        takes, more = (_long(s) for s in (lived.wall_s, lived.wall_s - limit.hours * 3600))
        over.append(f"budget.hours = {limit.hours:g}: the plan takes {takes}, {more} over")
    if limit.usd is not None and usd is not None and usd > limit.usd:
        more = f"{usd - limit.usd:,.2f}"
        over.append(f"budget.usd = {limit.usd:g}: the plan takes {usd:,.2f} USD, {more} over")
    if limit.usd is not None and usd is None:
        raise PenstockError(cost.no_price(limit.usd))
    return tuple(over)


def _long(seconds: float) -> str:
    """Format a duration in the unit of its size: `53 s`, `12.5 h`."""
    if seconds < 600:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _assumed(run: Run, lived: RunLife) -> list[str]:
    if lived.nodes == 1 or run.guard.spares or lived.interruptions < 1:
        return []
    return [
        f"{lived.interruptions:.0f} failures are expected, and without guard.spares the run goes "
        "on with fewer nodes until a lost one is repaired"
    ]
