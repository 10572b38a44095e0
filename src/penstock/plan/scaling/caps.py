"""One run under ever lower power limits: what each costs in time and saves in energy and money.

The layout stays that of the plan without a limit. The host, the fans and the switches draw on while
the run takes longer, so the least energy lies at a higher limit than the accelerator alone would
say, and the least cost higher still: whoever pays by the hour pays for the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.plan.dataset import needed
from penstock.plan.hardware.cap import capped, least_share
from penstock.plan.hardware.machine import Machine
from penstock.plan.make import make
from penstock.plan.plan import Plan
from penstock.run.schema.run import Run
from penstock.style import ENERGIES, MONEY, TIMES, format_count, format_predicted

STEPS = 14  # limits from the TDP down to 0.3 of it, by twentieths


@dataclass(frozen=True)
class CapPoint:
    """The run under one power limit."""

    cap_w: float
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        bill, life = self.plan.bill, self.plan.life
        return {
            "cap_w": self.cap_w,
            "tokens_per_s": self.plan.tokens_per_s,
            "days": life.days,
            "energy_kwh": bill.energy_kwh,
            "usd": bill.usd,
            "co2e_kg": bill.co2e_kg,
            "site_w": self.plan.site.busy_w if self.plan.site else None,
        }


@dataclass(frozen=True)
class CapSweep:
    """Points from the TDP downwards."""

    name: str
    accelerator: str
    source: str  # of the curve
    points: tuple[CapPoint, ...]

    @property
    def least_energy(self) -> CapPoint:
        return min(self.points, key=lambda point: point.plan.bill.energy_kwh or 0.0)

    @property
    def least_usd(self) -> CapPoint | None:
        priced = [point for point in self.points if point.plan.bill.usd is not None]
        return min(priced, key=lambda point: point.plan.bill.usd or 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "accelerator": self.accelerator,
            "source": self.source,
            "points": [point.to_json() for point in self.points],
            "least_energy_cap_w": self.least_energy.cap_w,
            "least_usd_cap_w": self.least_usd.cap_w if self.least_usd else None,
        }


def sweep_caps(run: Run, machine: Machine) -> CapSweep:
    """Plan the run under every limit."""
    if machine.tdp_w is None:
        raise PenstockError(
            f"--caps: the TDP of {machine.accelerator} is not known; write accelerator.tdp_w in a "
            "cluster file"
        )
    if machine.cap_w is not None:
        raise PenstockError("--caps: the cluster file sets accelerator.cap_w; leave it out")
    known = needed(run)
    first = make(known.run, machine, known.notes, data=known.sizes)
    points = [CapPoint(machine.tdp_w, first)]
    for twentieths in range(19, 19 - STEPS, -1):
        share = twentieths / 20
        if share < least_share(machine.accelerator):
            break
        slower = capped(machine, share * machine.tdp_w)
        plan = make(known.run, slower, layout=first.job.layout, data=known.sizes)
        points.append(CapPoint(share * machine.tdp_w, plan))
    return CapSweep(run.name, machine.accelerator, _source(machine), tuple(points))


def _source(machine: Machine) -> str:
    if machine.accelerator.startswith("H200"):
        return "measured on an H200 (`penstock catalog caps`)"
    return "the curve measured on an H200, by share of the TDP (estimated for this accelerator)"


def lines(found: CapSweep) -> Iterator[str]:
    """Format a row for each limit, then the two best."""
    yield f"{'limit W':>8} {'tokens/s':>9} {'speed':>6} {'time':>10} {'energy':>10}  cost"
    full = found.points[0].plan
    for point in found.points:
        plan, bill = point.plan, point.plan.bill
        usd = format_predicted(bill.usd, MONEY) if bill.usd is not None else "–"
        yield (
            f"{point.cap_w:8.0f} {format_count(plan.tokens_per_s):>9} "
            f"{plan.tokens_per_s / full.tokens_per_s:6.2f} "
            f"{format_predicted(plan.life.wall_s, TIMES):>10} "
            f"{format_predicted(bill.energy_kwh or 0.0, ENERGIES):>10}  {usd}"
        )
    yield f"least energy: {_against(found.least_energy, full)}"
    if found.least_usd:
        yield f"least cost: {_against(found.least_usd, full)} ({found.least_usd.plan.bill.price})"
    else:
        yield "least cost: not known, no price is given"
    yield f"curve: {found.source}"


def _against(point: CapPoint, full: Plan) -> str:
    if point.plan is full:
        return f"{point.cap_w:.0f} W, no limit"
    energy, before = point.plan.bill.energy_kwh, full.bill.energy_kwh
    saved = 1 - energy / before if energy and before else 0.0
    return (
        f"{point.cap_w:.0f} W: {saved:.1%} less energy, "
        f"{point.plan.life.wall_s / full.life.wall_s - 1:.1%} more time"
    )
