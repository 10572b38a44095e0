"""`Plan`: all predictions about a run before it is paid for, and how each number came about."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, nearest
from penstock.plan.agreement import Agreement
from penstock.plan.cost.cost import Bill
from penstock.plan.hours.supply import HourPlan
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import Band, PeakMemory, StepTime
from penstock.plan.life.life import RunLife
from penstock.plan.power.limits import LimitVerdict
from penstock.plan.power.site import SiteUse
from penstock.plan.search.sensitivity import LayoutOption
from penstock.plan.sync import SyncAccount

# Names of numbers on the screen, and in the JSON.
SCREEN = {
    "time": "days",
    "speed": "tokens_per_s",
    "cost": "usd",
    "energy": "energy_kwh",
    "MFU": "mfu",
    "step": "step_s",
}


@dataclass(frozen=True)
class Plan:
    """One run on one machine. `assemble` makes it; programs and reports read `to_json`."""

    name: str  # of the run
    job: Job
    step: StepTime
    memory: PeakMemory
    life: RunLife
    bill: Bill
    mfu: float | None  # None when nobody has published the device's peak
    mfu_of: str  # the peak it is measured against, or why there is none
    bands: Mapping[str, Band]  # factors, by the names in the JSON
    bottleneck: str
    sensitivity: Mapping[str, float]  # per cent more throughput from 10 % more
    next: str
    over_budget: tuple[str, ...]
    warnings: tuple[str, ...]
    options: tuple[LayoutOption, ...]  # the best layouts that fit, this one among them
    rejected: tuple[LayoutOption, ...]
    sync: SyncAccount | None  # what replicas exchange; None: there is one
    agreement: Agreement | None  # what local_steps = "auto" is; None: the file says it
    notes: Mapping[str, tuple[str, ...]]  # derivations, by the names in the JSON
    limits: LimitVerdict  # of the site, of memory, of the budget, and where time is lost
    site: SiteUse | None  # what the machines take of their site; None without a TDP
    hours: HourPlan | None = None  # where budget.hours_csv is given

    @property
    def tokens_per_s(self) -> float:
        """Return the rate while stepping, over all ranks."""
        return self.step.tokens / self.step.step_s

    def value(self, name: str) -> float | None:
        """Return a number that has a band, by its name in the JSON."""
        found: dict[str, float | None] = {
            "step_s": self.step.step_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "memory.peak_bytes": self.memory.peak_bytes,
            "days": self.life.days,
            "effective": self.life.effective,
            "usd": self.bill.usd,
            "energy_kwh": self.bill.energy_kwh,
            "co2e_kg": self.bill.co2e_kg,
        }
        return found[name]

    def span(self, name: str) -> tuple[float, float] | None:
        """Return the range that holds the number in four of five cases; None when it is not
        known.
        """
        value, band = self.value(name), self.bands.get(name)
        return None if value is None or band is None else (value * band.low, value * band.high)

    def to_json(self) -> dict[str, Any]:
        life, bill, cost = self.life, self.bill, self.life.recovery
        spans = {name: span for name in self.bands if (span := self.span(name))}
        return {
            "run": self.name,
            "machine": self.job.machine.name,
            "accelerators": life.accelerators,
            "nodes": life.nodes,
            "fits": self.memory.fits,
            "layout": self.job.layout.to_json(),
            "memory": {
                **{part: float(size) for part, size in self.memory.parts.items()},
                "allocated_bytes": self.memory.allocated_bytes,
                "reserved_bytes": self.memory.reserved_bytes,
                "peak_bytes": self.memory.peak_bytes,
                "capacity_bytes": self.memory.capacity_bytes,
                "margin": self.memory.margin,
                "stage": self.memory.stage,
            },
            "step_s": self.step.step_s,
            "step": dict(self.step.parts),
            "steps": life.steps,
            "tokens": life.steps * self.step.tokens,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "mfu_of": self.mfu_of,
            "ledger": bill.ledger.to_json(),
            "effective": life.effective,
            "useful": life.useful,
            "interruptions": life.interruptions,
            "mtbf_s": cost.mtbf_s,
            "checkpoint_interval_s": life.interval_s,
            "checkpoint_bytes": cost.checkpoint_bytes,
            "save_s": cost.save_s,
            "copy_s": cost.copy_s,
            "saves": life.saves,
            "startup_s": cost.startup_s,
            "restart_s": cost.restart_s,
            "evaluations": life.evaluations,
            "wall_s": life.wall_s,
            "days": life.days,
            "usd": bill.usd,
            "price": bill.price or None,
            "energy_it_kwh": bill.energy_it_kwh,
            "energy_kwh": bill.energy_kwh,
            "co2e_kg": bill.co2e_kg,
            "embodied_co2e_kg": bill.embodied.kg if bill.embodied else None,
            "sync": self.sync.to_json() if self.sync else None,
            "agreement": self.agreement.to_json() if self.agreement else None,
            "bottleneck": self.bottleneck,
            "sensitivity": dict(self.sensitivity),
            "next": self.next,
            "bands": {name: {"low": low, "high": high} for name, (low, high) in spans.items()},
            "over_budget": list(self.over_budget),
            "limits": self.limits.to_json(),
            "site": self.site.to_json() if self.site else None,
            "options": [option.to_json() for option in self.options],
            "rejected": [option.to_json() for option in self.rejected],
            "warnings": list(self.warnings),
            **({"hours": self.hours.to_json()} if self.hours else {}),
        }

    def explain(self, name: str) -> str:
        """Explain how a number of the JSON came about, by its dotted name such as
        `memory.activations`.
        """
        name = SCREEN.get(name, name)
        values = dict(_names(self.to_json()))
        if name not in values:
            hint = nearest(name, values)
            some = "step_s, memory.peak_bytes, mfu, days, usd, effective"
            raise PenstockError(f"plan: no number '{name}'. {hint} Some: {some}".replace("  ", " "))
        head = name if isinstance(values[name], dict | list) else f"{name} = {values[name]}"
        span = self.span(name) if name in self.bands else None
        lines = [*self._notes(name)]
        if span:
            lines.append(f"in four of five cases between {span[0]:.4g} and {span[1]:.4g}")
        return "\n  ".join([head, *lines])

    def _notes(self, name: str) -> tuple[str, ...]:
        """Return the notes of a name, or of the nearest name above it."""
        while name not in self.notes:
            name = name.rpartition(".")[0]
            assert name, "every top-level name has a note"
        return self.notes[name]


def _names(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted name of a JSON object with its value, inner tables too; lists are
    values.
    """
    for key, value in table.items():
        yield above + key, value
        if isinstance(value, dict):
            yield from _names(value, f"{above}{key}.")
