"""The energy, money and carbon of a run, hour by hour: of a schedule, or of what was drawn."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.policy.hours.terms import (
    COLUMN_OF,
    J_PER_KWH,
    By,
    HourSchedule,
    HourTerms,
    grid_w,
    weight,
)
from penstock.run.hours import HourlyCurve


@dataclass(frozen=True)
class DrawnPower:
    """A time in which a run draws the same power."""

    start_s: float  # unix seconds
    end_s: float
    watts: float  # of the site, cooling included
    paused: bool


@dataclass(frozen=True)
class ScheduleSums:
    """Sums over a schedule; None where the file has no such column."""

    grid_kwh: float
    onsite_kwh: float
    paused_kwh: float  # of both, while the run pauses
    usd: float | None
    gco2e: float | None  # location-based
    market_gco2e: float | None

    def of(self, by: By) -> float:
        """Return the sum that hours are chosen by."""
        found = {"cost": self.usd, "carbon": self.gco2e, "market_carbon": self.market_gco2e}[by]
        assert found is not None, "checked when the terms were made"
        return found


def sums(plan: HourSchedule, terms: HourTerms, curve: HourlyCurve) -> ScheduleSums:
    """Add up a schedule."""
    return add_up(
        (
            DrawnPower(
                one.start_s,
                one.end_s,
                terms.paused_w if one.level is None else terms.levels[one.level].watts,
                one.level is None,
            )
            for one in plan.stretches
        ),
        curve,
    )


def add_up(drawn: Iterable[DrawnPower], curve: HourlyCurve) -> ScheduleSums:
    """Add up what was drawn, each hour at its own price and carbon.

    Generation on the site is used first, and the rest comes from the grid. The plan and the report
    both reckon with this.
    """
    grid_kwh = onsite_kwh = paused_kwh = 0.0
    totals: dict[By, float] = {by: 0.0 for by, name in COLUMN_OF.items() if curve.has(name)}
    for one in drawn:
        t = one.start_s
        while t < one.end_s:
            hour, upto = curve.at(t), min(curve.next_hour(t), one.end_s)
            from_grid = grid_w(hour, one.watts) * (upto - t) / J_PER_KWH
            own = one.watts * (upto - t) / J_PER_KWH - from_grid
            grid_kwh, onsite_kwh = grid_kwh + from_grid, onsite_kwh + own
            paused_kwh += from_grid + own if one.paused else 0.0
            for by in totals:
                totals[by] += from_grid * weight(hour, by)
            t = upto
    return ScheduleSums(
        grid_kwh,
        onsite_kwh,
        paused_kwh,
        totals.get("cost"),
        totals.get("carbon"),
        totals.get("market_carbon"),
    )
