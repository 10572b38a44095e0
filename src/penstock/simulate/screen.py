"""The outcome of a simulation on one screen."""

from collections.abc import Iterator

from penstock.plan.life.life import DAY_S
from penstock.simulate.result import Simulation, Spread
from penstock.style import (
    ENERGIES,
    MONEY,
    TIMES,
    format_duration,
    format_predicted,
    format_predicted_time,
    format_predicted_times,
    format_step_time,
    plural,
)

SHOWN = 4  # causes of failures that are named


def lines(done: Simulation) -> Iterator[str]:
    """Yield the answer for people."""
    own = done.own
    spares = f" and {plural(own.spares, 'spare')}" if own.spares else ""
    sites = f" in {own.sites} sites" if own.sites > 1 else ""
    yield (
        f"lives          {len(done.lives)} of {done.run.name}: "
        f"{plural(own.ranks, 'accelerator')} on {plural(own.nodes, 'node')}{spares}{sites}, "
        f"{'live' if own.live else 'restart'} mode"
    )
    by = _by_cause(done)
    yield f"interruptions  {_spread(done.interruptions, '{:,.0f}')}{f' ({by})' if by else ''}"
    yield f"effective      {_percent(done.effective)} of the time is training; useful " + _percent(
        done.useful
    )
    if own.steps < float("inf"):
        days = done.days
        spread = format_predicted_times(*(d * DAY_S for d in (days.p50, days.p5, days.p95)))
        yield f"time           {spread}{_chance(done)}"
    else:
        steps = Spread.of([life.steps for life in done.lives])
        yield f"progress       {_spread(steps, '{:,.0f}')} steps in {_time(done.days.p50)}"
    if done.paused.p95:
        yield f"pauses         {_units(done.paused, 1.0, TIMES)} in dear hours"
    if done.fewer.p95:
        words = f"{_units(done.fewer, 1.0, TIMES)} in hours without the power for all"
        yield f"fewer          {words}"
    if usd := done.usd:
        yield f"cost           {_units(usd, 1.0, MONEY)}{' with spares' if own.spares else ''}"
    if energy := done.energy_kwh:
        yield f"energy         {_units(energy, 1.0, ENERGIES)}"
    yield f"cost most      {_cost_most(done)}"
    yield f"spares         {_spares(done)}"
    plan = done.plan.life
    yield (
        f"plan           {100 * plan.effective:.1f} % effective and {plan.interruptions:,.0f} "
        "failures by the formulas of `plan`, on average"
    )
    wide = (
        ": nothing is known of this fleet, so the band is wide; state failures.node_mtbf in a "
        "cluster file, or --calibrate with its runs"
    )
    yield f"rates          {done.model.source}{wide if done.model.wide else ''}"
    if times := done.measured:
        stall = f", {format_duration(times.stall_s)} for a failure" if times.stall_s else ""
        yield (
            f"measured       {times.steps:,} steps of this run in journals: "
            f"{format_step_time(times.step_s)} a step, {format_duration(times.startup_s)} for a "
            f"start{stall}"
        )
    for note in done.warnings:
        yield f"note           {note}"


def _spread(found: Spread, form: str) -> str:
    return f"{form.format(found.p50)} ({form.format(found.p5)}–{form.format(found.p95)})"


def _percent(found: Spread) -> str:
    return f"{100 * found.p50:.1f} % ({100 * found.p5:.1f}–{100 * found.p95:.1f})"


def _units(found: Spread, scale: float, units: object) -> str:
    shown = [format_predicted(v * scale, units) for v in (found.p50, found.p5, found.p95)]  # type: ignore[arg-type]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _time(days: float) -> str:
    return format_predicted_time(days * DAY_S)


def _by_cause(done: Simulation) -> str:
    by = sorted(done.interruptions_by_cause().items(), key=lambda item: -item[1].p50)
    return ", ".join(f"{name} {found.p50:,.0f}" for name, found in by[:SHOWN])


def _chance(done: Simulation) -> str:
    if done.in_time is None or done.by_s is None:
        return ""
    return f"; {100 * done.in_time:.0f} % of the lives end within {format_duration(done.by_s)}"


def _cost_most(done: Simulation) -> str:
    by = list(done.cost_s().items())[:SHOWN]
    if not by:
        return "nothing failed"
    return ", ".join(f"{name} {format_duration(found.p50)}" for name, found in by)


def _spares(done: Simulation) -> str:
    fewest = [life.fewest_spares for life in done.lives]
    out = Spread.of([life.quarantined for life in done.lives])
    dry = sum(count == 0 for count in fewest) / len(fewest)
    said = f"{out.p50:,.0f} nodes ({out.p5:,.0f}–{out.p95:,.0f}) are left out by the end"
    if not done.own.spares:
        return f"none: a lost node is missing until it is repaired; {said}"
    return f"they run dry in {100 * dry:.0f} % of the lives; {said}"
