"""The energy, money and carbon of a schedule, hour by hour."""

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
    grid_kwh = onsite_kwh = paused_kwh = 0.0
    totals: dict[By, float] = {by: 0.0 for by, name in COLUMN_OF.items() if curve.has(name)}
    for one in plan.stretches:
        watts = terms.paused_w if one.level is None else terms.levels[one.level].watts
        t = one.start_s
        while t < one.end_s:
            hour, upto = curve.at(t), min(curve.next_hour(t), one.end_s)
            from_grid = grid_w(hour, watts) * (upto - t) / J_PER_KWH
            own = watts * (upto - t) / J_PER_KWH - from_grid
            grid_kwh, onsite_kwh = grid_kwh + from_grid, onsite_kwh + own
            paused_kwh += from_grid + own if one.level is None else 0.0
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
