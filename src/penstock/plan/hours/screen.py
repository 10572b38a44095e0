"""The lines of `penstock plan` about hours."""

from math import inf

from penstock.plan.hours.supply import HourPlan
from penstock.style import MASSES, MONEY, TIMES, format_predicted, plural


def hours_line(hours: HourPlan) -> str:
    """Say how often the run pauses, when it ends, and what that saves."""
    plan, curve = hours.schedule, hours.curve
    if plan.finish_s == inf:
        return "no hour has the power that the run needs"
    waits = [f"paused {format_predicted(plan.paused_s, TIMES)} in {plural(hours.waits, 'pause')}"]
    waits = waits if hours.waits else ["no pause"]
    fewer_s = sum(one.length_s for one in plan.stretches if one.level)
    if fewer_s:
        waits.append(f"on fewer accelerators for {format_predicted(fewer_s, TIMES)}")
    ends = f"ends {curve.date(plan.finish_s)}"
    if hours.later_s() >= 60:
        ends += f", {format_predicted(hours.later_s(), TIMES)} later"
    elif hours.later_s() <= -60:
        ends += f", {format_predicted(-hours.later_s(), TIMES)} earlier"
    return "; ".join([", ".join(waits), ends, *_savings(hours)])


def _savings(hours: HourPlan) -> list[str]:
    now, before = hours.sums, hours.straight_sums
    if now is None or before is None:
        return []
    rows = (
        ("electricity", before.usd, now.usd, MONEY, 1.0),
        ("CO2e", before.gco2e, now.gco2e, MASSES, 1000.0),
        ("CO2e by contracts", before.market_gco2e, now.market_gco2e, MASSES, 1000.0),
    )
    return [
        f"{name} {_figure(old / per, units)} → {_figure(new / per, units)}{_percent(old, new)}"
        for name, old, new, units, per in rows
        if old is not None and new is not None
    ]


def _figure(value: float, units: tuple[tuple[str, float, float], ...]) -> str:
    sign = "−" if value < 0 else ""
    return sign + format_predicted(abs(value), units)


def _percent(old: float, new: float) -> str:
    if old <= 0:
        return ""
    change = 100 * (new / old - 1)
    return f" ({'−' if change < 0 else '+'}{abs(change):.0f} %)"
