"""The power and the speed of a planned run, at work on all or some accelerators and in a pause."""

from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan.job import legal
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.life.life import RunLife
from penstock.plan.memory import memory
from penstock.plan.power.power import PowerDraw
from penstock.policy.hours.terms import COLUMN_OF, By, HourTerms, PowerLevel
from penstock.policy.shrink import WAYS, fit_to_ranks, speed_with
from penstock.run.hours import HourlyCurve, read_hours
from penstock.run.schema.budget import BudgetSection
from penstock.run.schema.run import Run

# Of the data-parallel ways, where hours have too little power for all of them.
SHARES = (0.75, 0.5, 0.25)
# Where no prediction can be made: what a save, a start and loading take together (estimated).
UNKNOWN_SWITCH_S = 30.0


def curve_of(budget: BudgetSection) -> HourlyCurve | None:
    """Read the hours that a run file names, if any; refuse a file that cannot be used."""
    if budget.hours_csv is None:
        return None
    curve = read_hours(budget.hours_csv, budget.hours_zone)
    by_of(budget, curve)
    return curve


def by_of(budget: BudgetSection, curve: HourlyCurve) -> By:
    """Return what hours are chosen by; refuse a column that the file does not have."""
    if budget.hours_by is None:
        return next(by for by, name in COLUMN_OF.items() if curve.has(name))
    if not curve.has(COLUMN_OF[budget.hours_by]):
        raise PenstockError(
            f'budget.hours_by = "{budget.hours_by}": budget.hours_csv = {curve.source} has no '
            f"column {COLUMN_OF[budget.hours_by]}; add it, or leave hours_by out"
        )
    return budget.hours_by


def hour_terms(
    run: Run, curve: HourlyCurve, job: Job, lived: RunLife, draw: PowerDraw | None
) -> HourTerms:
    """Return the terms of a planned run. Watts are of the site, with its PUE."""
    budget = run.budget
    cost, by = lived.recovery, by_of(budget, curve)
    switch_s = cost.save_s + cost.again_s + cost.load_s
    if draw is None:
        return unknown_terms(budget, curve, job.layout.ranks, switch_s)
    ranks, pue = job.layout.ranks, job.machine.pue or 1.0
    spent = lived.ledger.seconds
    mean_w = sum(spent[cause] * draw.by_cause[cause] for cause in Cause) / lived.ledger.total * pue
    rest_w = draw.by_cause[Cause.DOWN] * pue
    step_w = draw.by_cause[Cause.REDO] * pue  # steps done again are steps
    full = PowerLevel(ranks, 1.0, ranks * mean_w, ranks * step_w)
    fewer: tuple[PowerLevel, ...] = ()
    # Elsewhere some of the accelerators for longer are never better than all and then a pause.
    if limits_power(curve):
        fewer = tuple(
            PowerLevel(some.ranks, speed, *(some.ranks * w + rest for w in (mean_w, step_w)))
            for some, speed in smaller_layouts(run, job).layouts
            for rest in [(ranks - some.ranks) * rest_w]
        )
    paused_w = 0.0 if budget.hours_paused == "off" else ranks * rest_w
    return HourTerms((full, *fewer), paused_w, switch_s, by, cost.save_s)


def limits_power(curve: HourlyCurve) -> bool:
    """Tell whether some hours have less power than others, for which a run may be made smaller."""
    return curve.has("grid_limit_w") or curve.has("onsite_w")


def unknown_terms(
    budget: BudgetSection, curve: HourlyCurve, ranks: int, switch_s: float = UNKNOWN_SWITCH_S
) -> HourTerms:
    """Return terms without watts: prices can be compared, amounts of money cannot be said."""
    for name in ("grid_limit_w", "onsite_w"):
        if curve.has(name):
            raise PenstockError(
                f"budget.hours_csv = {curve.source}: {name} cannot be kept, because the power of "
                "this machine is not known; give accelerator.tdp_w in a cluster file, or leave the "
                "column out"
            )
    return HourTerms((PowerLevel(ranks, 1.0, 1.0),), 0.0, switch_s, by_of(budget, curve))


@dataclass(frozen=True)
class SmallerLayouts:
    """Layouts on fewer accelerators that a run can train on, with their speed over that of all."""

    layouts: tuple[tuple[Layout, float], ...]
    none: str = ""  # why there is none


def smaller_layouts(run: Run, job: Job) -> SmallerLayouts:
    """Find layouts on fewer accelerators that the run may have and that fit."""
    if why := _whole(run, job):
        return SmallerLayouts((), why)
    found: dict[int, tuple[Layout, float]] = {}
    none = ""
    for share in SHARES:
        ways = int(job.data_ways * share)
        layout = layout_on(job.layout, ways * job.layout.model_ways) if ways else None
        if layout is None:
            continue
        if problems := legal.problems(run, job.shape, layout):
            none = none or problems[0]
        elif not memory.predict(job.with_layout(layout)).fits:
            none = none or f"the model does not fit on {layout.ranks}"
        else:
            data_ways = layout.replicate * layout.shard
            speed = speed_with(max(1, job.microbatches), job.data_ways, data_ways)
            found[layout.ranks] = layout, speed
    return SmallerLayouts((*found.values(),), "" if found else none)


def _whole(run: Run, job: Job) -> str:
    """Return why a run has all of its accelerators or none, by what it is; "" where it may shrink.

    Tensor, pipeline and context ways stay, as `policy/shrink.py` says.
    """
    if run.train.sync.apart and not run.sites:
        return (
            f"train.sync.local_steps = {run.train.sync.local_steps}: what is learned depends on "
            "the number of replicas"
        )
    if job.data_ways == 1:
        return "it has one data-parallel way, and the others stay"
    return ""


def layout_on(layout: Layout, accelerators: int) -> Layout | None:
    """Return a layout cut down to fewer accelerators; None where it cannot be.

    As a start on fewer hosts lays a run out: replicas go first, then shards. The supervisor calls
    this for the accelerators that an hour allows, and `smaller_layouts` for those that are planned.
    """
    asked = {name: getattr(layout, name) for name in WAYS}
    sizes = fit_to_ranks(asked, min(accelerators, layout.ranks))
    if sizes is None:
        return None
    fit: dict[str, Any] = {**sizes}
    return replace(layout, **fit)


def terms_to_json(terms: HourTerms) -> dict[str, Any]:
    return {
        "levels": [vars(level) for level in terms.levels],
        "paused_w": terms.paused_w,
        "switch_s": terms.switch_s,
        "by": terms.by,
        "save_s": terms.save_s,
    }


def terms_from_json(table: dict[str, Any]) -> HourTerms:
    levels = tuple(PowerLevel(**level) for level in table["levels"])
    save_s = table.get("save_s", 0.0)  # plans of earlier versions have none
    return HourTerms(levels, table["paused_w"], table["switch_s"], table["by"], save_s)
