"""Price per hour, price per kWh, PUE and carbon intensity of a run, with their sources.

Written down when a run is launched, so that its report can be read anywhere and any time later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.errors import PenstockError
from penstock.meter.inventory import take_inventory
from penstock.plan.cost.cost import price_of
from penstock.plan.hardware.cluster import machine_for, machine_of, placed
from penstock.plan.hardware.machine import Machine
from penstock.run.clusters.file import ClusterFile
from penstock.run.hours import HourlyCurve, read_hours
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class SourcedRate:
    """A number with its source and date."""

    value: float
    source: str


@dataclass(frozen=True)
class CostRates:
    """The rates of a run. None is unknown; numbers that need it are left out."""

    usd_per_hour: SourcedRate | None = None  # of one accelerator
    usd_per_kwh: SourcedRate | None = None
    pue: SourcedRate | None = None
    gco2e_per_kwh: SourcedRate | None = None
    usd_per_kwh_apart: SourcedRate | None = None  # electricity on top of usd_per_hour: own machines

    def to_json(self) -> dict[str, Any]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: factor and {"value": factor.value, "source": factor.source}
            for name, factor in found.items()
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "CostRates":
        """Read what was written down; ignore what is no rate."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: _read(table.get(name)) for name in names})


def _read(found: object) -> SourcedRate | None:
    if not isinstance(found, dict):
        return None
    value, source = found.get("value"), found.get("source")
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return SourcedRate(float(value), str(source))


def of_machine(run: Run, machine: Machine) -> CostRates:
    price = price_of(run, machine)

    def factor(name: str) -> SourcedRate | None:
        value: float | None = getattr(machine, name)
        return None if value is None else SourcedRate(value, machine.sources.get(name, "given"))

    return CostRates(
        usd_per_hour=SourcedRate(price.usd, price.source) if price else None,
        usd_per_kwh_apart=factor("usd_per_kwh")
        if price and price.usd_per_kwh is not None
        else None,
        usd_per_kwh=factor("usd_per_kwh"),
        pue=factor("pue"),
        gco2e_per_kwh=factor("gco2e_per_kwh"),
    )


def of_file(run: Run, file: ClusterFile) -> CostRates:
    """Return the rates of a cluster file, with those that the run file itself gives."""
    return of_machine(run, placed(machine_of(file), run.cluster))


def of(run: Run) -> CostRates:
    """Return the rates of the machines that the run asks for; none for a device that nobody has
    measured.
    """
    try:
        return of_machine(run, machine_for(run).machine)
    except PenstockError:
        return CostRates()


def written(run: Run) -> dict[str, Any]:
    """Return the rates of a launch and the machine that they are for, as JSON; with the hours of
    its site, so that a report needs no other file.
    """
    budget, found = run.budget, {**of(run).to_json(), "seen": take_inventory().fingerprint}
    if budget.hours_csv is None:
        return found
    return found | hours_written(read_hours(budget.hours_csv, budget.hours_zone))


def hours_written(curve: HourlyCurve, ahead_s: float = 0.0) -> dict[str, Any]:
    """Return hours as JSON; `ahead_s` is their clock over that of the run's journal."""
    return {"hours": {**curve.to_json(), "ahead_s": ahead_s}}
