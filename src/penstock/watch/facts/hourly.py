"""The hours of a run in its report: what was drawn in each, and what that costs.

Amounts are those of `policy/hours/sums.py`, which the plan adds up its schedule by.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.policy.hours.sums import DrawnPower, add_up
from penstock.policy.hours.terms import J_PER_KWH
from penstock.run.hours import HourlyCurve, read_hours
from penstock.watch.facts.energy_amounts import EnergyByTime
from penstock.watch.facts.run_view import RunView

MOST_CUTS = 20_000  # two years of hours


@dataclass(frozen=True)
class RunHours:
    """The hours of a run's site. Its journal may have another clock: that of a simulated life."""

    curve: HourlyCurve
    ahead_s: float
    off: bool  # machines that pause draw nothing that counts

    def cuts(self, view: RunView) -> np.ndarray:
        """Return the moments at which prices or pauses begin and end, by the journal."""
        found: set[float] = set()
        for invocation in view.account.invocations:
            found |= {invocation.start, invocation.end}
            found |= {t for one in invocation.pauses for t in (one.start, one.end)}
            t = self.curve.next_hour(invocation.start + self.ahead_s) - self.ahead_s
            while t < invocation.end and len(found) < MOST_CUTS:
                found.add(t)
                t = self.curve.next_hour(t + self.ahead_s) - self.ahead_s
        return np.array(sorted(found))


@dataclass(frozen=True)
class HourlyBill:
    """Electricity and carbon of a run by its hours. None: the file has no such column."""

    kwh: Mapping[Cause, float]  # of the site; pauses of machines that are then off are left out
    paused_kwh: float
    off_kwh: float  # left out
    usd: Mapping[Cause, float] | None
    gco2e: Mapping[Cause, float] | None  # location-based
    market_gco2e: Mapping[Cause, float] | None
    words: str


def hours_of(view: RunView) -> RunHours | None:
    """Return the hours that the last launch read; without it, those of the file that is named."""
    run = view.run_or_none
    if run is None or run.budget.hours_csv is None:
        return None
    off = run.budget.hours_paused == "off"
    saved = view.launch.rates
    table = saved.get("hours") if isinstance(saved, dict) else None
    try:
        if isinstance(table, dict):
            return RunHours(HourlyCurve.from_json(table), float(table.get("ahead_s", 0.0)), off)
        return RunHours(read_hours(run.budget.hours_csv, run.budget.hours_zone), 0.0, off)
    except (PenstockError, KeyError, TypeError, ValueError, StopIteration):
        return None


def bill_by_hours(used: EnergyByTime, hours: RunHours, pue: float) -> HourlyBill:
    """Bill each hour of a run at its own price and carbon."""
    names = ("kwh", "usd", "gco2e", "market_gco2e")
    totals = {name: dict.fromkeys(Cause, 0.0) for name in names}
    missing: set[str] = set()
    paused_kwh = off_kwh = 0.0
    for start, end, paused, joules in zip(
        used.start + hours.ahead_s, used.end + hours.ahead_s, used.paused, used.joules, strict=True
    ):
        total_j = float(joules.sum()) * pue
        if paused and hours.off:
            off_kwh += total_j / J_PER_KWH
            continue
        if total_j <= 0 or end <= start:
            continue
        drawn = DrawnPower(float(start), float(end), total_j / float(end - start), bool(paused))
        sums = add_up([drawn], hours.curve)
        paused_kwh += sums.paused_kwh
        shares = (joules * pue / total_j).tolist()
        found = (total_j / J_PER_KWH, sums.usd, sums.gco2e, sums.market_gco2e)
        for name, amount in zip(names, found, strict=True):
            if amount is None:
                missing.add(name)
                continue
            for cause, share in zip(Cause, shares, strict=True):
                totals[name][cause] += share * amount
    for name, by in (("usd", "usd_per_kwh"), ("gco2e", "gco2e_per_kwh")):
        missing |= set() if hours.curve.has(by) else {name}
    missing |= set() if hours.curve.has("market_gco2e_per_kwh") else {"market_gco2e"}

    def amounts(name: str) -> Mapping[Cause, float] | None:
        return None if name in missing else totals[name]

    return HourlyBill(
        totals["kwh"],
        paused_kwh,
        off_kwh,
        amounts("usd"),
        amounts("gco2e"),
        amounts("market_gco2e"),
        f"by the hours of {hours.curve.source}",
    )
