"""The power and the speed of a planned run, at work on all or some accelerators and in a pause."""

from dataclasses import replace
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.life.life import RunLife
from penstock.plan.memory import memory
from penstock.plan.power.power import PowerDraw
from penstock.policy.hours.terms import COLUMN_OF, By, HourTerms, PowerLevel
from penstock.policy.shrink import WAYS, fit_to_ranks, speed_with
from penstock.run.hours import HourlyCurve, read_hours
from penstock.run.schema.budget import BudgetSection

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
    budget: BudgetSection, curve: HourlyCurve, job: Job, lived: RunLife, draw: PowerDraw | None
) -> HourTerms:
    """Return the terms of a planned run. Watts are of the site, with its PUE."""
    cost, by = lived.recovery, by_of(budget, curve)
    switch_s = cost.save_s + cost.again_s + cost.load_s
    if draw is None:
        return unknown_terms(budget, curve, job.layout.ranks, switch_s)
    ranks, pue = job.layout.ranks, job.machine.pue or 1.0
    spent = lived.ledger.seconds
    mean_w = sum(spent[cause] * draw.by_cause[cause] for cause in Cause) / lived.ledger.total * pue
    rest_w = draw.by_cause[Cause.DOWN] * pue
    full = PowerLevel(ranks, 1.0, ranks * mean_w)
    fewer: tuple[PowerLevel, ...] = ()
    # Elsewhere some of the accelerators for longer are never better than all and then a pause.
    if curve.has("grid_limit_w") or curve.has("onsite_w"):
        fewer = tuple(
            PowerLevel(some.ranks, speed, some.ranks * mean_w + (ranks - some.ranks) * rest_w)
            for some, speed in smaller_layouts(job)
        )
    paused_w = 0.0 if budget.hours_paused == "off" else ranks * rest_w
    return HourTerms((full, *fewer), paused_w, switch_s, by)


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


def smaller_layouts(job: Job) -> list[tuple[Layout, float]]:
    """Return layouts on fewer accelerators that fit, with their speed over that of all.

    As a start on fewer accelerators lays a run out: replicas go first, then shards.
    """
    asked = {name: getattr(job.layout, name) for name in WAYS}
    found: dict[int, tuple[Layout, float]] = {}
    for share in SHARES:
        ways = int(job.data_ways * share)
        sizes = fit_to_ranks(asked, ways * job.layout.model_ways) if ways else None
        if sizes is None:
            continue
        fit: dict[str, Any] = {**sizes}
        layout = replace(job.layout, **fit)
        if not memory.predict(job.with_layout(layout)).fits:
            continue
        speed = speed_with(max(1, job.microbatches), job.data_ways, layout.replicate * layout.shard)
        found[layout.ranks] = layout, speed
    return list(found.values())


def terms_to_json(terms: HourTerms) -> dict[str, Any]:
    return {
        "levels": [vars(level) for level in terms.levels],
        "paused_w": terms.paused_w,
        "switch_s": terms.switch_s,
        "by": terms.by,
    }


def terms_from_json(table: dict[str, Any]) -> HourTerms:
    levels = tuple(PowerLevel(**level) for level in table["levels"])
    return HourTerms(levels, table["paused_w"], table["switch_s"], table["by"])
