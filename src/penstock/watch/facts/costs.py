"""The cost of a run: USD, kWh and gCO2e, so far, to go, and by cause.

USD are time × price, or kilowatt-hours × the site's price; gCO2e are kilowatt-hours × the site's
factor. A run by hours (`budget.hours_csv`) has the price and the factor of each hour. Without a
price or a site the number is left out, and the notes say which field to set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance, Quantity, Source
from penstock.plan.cost.cost import J_PER_KWH
from penstock.plan.cost.embodied import embodied
from penstock.plan.cost.rates import CostRates, SourcedRate
from penstock.plan.job.outcome import STEP_CAUSES
from penstock.plan.power.power import RESTING
from penstock.policy.restart import EARLY
from penstock.watch.facts.energy import Energy, energy_of
from penstock.watch.facts.energy_model import machine_of_run
from penstock.watch.facts.hourly import HourlyBill, bill_by_hours, hours_of
from penstock.watch.facts.rates import rates_of
from penstock.watch.facts.run_view import RunView

ByCause = Mapping[Cause, float]
BESIDE_STEPS = (Cause.CHECKPOINT, Cause.EVALUATE, Cause.DOWN, Cause.REDO)
NO_PRICE = "USD: no price is known; write cluster.usd_per_hour in the run file"
NO_SITE = (
    'CO2e: no site is known; write cluster.site = "us-east-1" (`penstock catalog sites`) or '
    "cluster.carbon in the run file"
)
NO_ENERGY = "the energy of this machine is not known"


@dataclass(frozen=True)
class AccruedCost:
    """One quantity (USD, kWh or gCO2e) that a run has used."""

    by_cause: ByCause
    to_go: float | None  # None if the remaining time is not known
    where: Provenance  # its note is the factor, with year and source

    @property
    def so_far(self) -> float:
        return sum(self.by_cause.values())


@dataclass(frozen=True)
class Costs:
    """The costs of a run. None is unknown; the notes say why, and how each amount was computed."""

    usd: float | None
    usd_to_go: float | None
    usd_by_cause: ByCause | None
    gco2e: float | None
    gco2e_to_go: float | None
    gco2e_by_cause: ByCause | None
    kwh: float | None  # of the site if its PUE is known, else of the machines
    kwh_to_go: float | None
    market_gco2e: float | None  # by contracts; only where a file of hours has it
    market_gco2e_to_go: float | None
    embodied_gco2e: float | None  # of making the accelerators, so far; in no sum
    notes: tuple[str, ...]
    ledger: Ledger  # seconds, joules (of the machines), USD and gCO2e of the run so far

    def to_json(self) -> dict[str, Any]:
        def causes(amounts: ByCause | None) -> dict[str, float] | None:
            return None if amounts is None else {str(c): value for c, value in amounts.items()}

        return {
            "usd": self.usd,
            "usd_to_go": self.usd_to_go,
            "usd_by_cause": causes(self.usd_by_cause),
            "gco2e": self.gco2e,
            "gco2e_to_go": self.gco2e_to_go,
            "gco2e_by_cause": causes(self.gco2e_by_cause),
            "kwh": self.kwh,
            "kwh_to_go": self.kwh_to_go,
            "market_gco2e": self.market_gco2e,
            "market_gco2e_to_go": self.market_gco2e_to_go,
            "embodied_gco2e": self.embodied_gco2e,
            "notes": list(self.notes),
        }


def costs_of(view: RunView) -> Costs:
    """Compute the energy and the costs of a run."""
    return costs_with(view, energy_of(view))


def costs_with(view: RunView, energy: Energy | None) -> Costs:
    """Compute the costs of a run whose energy is already computed."""
    rates, seconds = rates_of(view), view.account.ledger.seconds
    left_s = left_rank_s(view)
    power = _power(seconds, energy, left_s, rates)
    hourly = _hourly(view, energy, rates)
    if power and hourly:
        power = _without_pauses(power, hourly)
    usd = _by_time(seconds, left_s, rates) or _electricity(power, rates, hourly)
    if usd and rates.usd_per_kwh_apart:
        usd = _with_electricity(usd, power, rates.usd_per_kwh_apart, hourly)
    carbon = _carbon(power, rates, hourly)
    market = _of_hours(power, hourly, "market_gco2e", "market-based, ")
    notes = [
        f"USD: {usd.where.note}" if usd else NO_PRICE,
        f"CO2e: {carbon.where.note}" if carbon else f"CO2e: {NO_ENERGY}" if not power else NO_SITE,
    ]
    if power and not rates.pue:
        notes.append("no PUE is known: cooling of the site is not included")
    if market:
        notes.append(f"CO2e by contracts: {market.where.note}")
    machine = machine_of_run(view) if view.launch.device == "cuda" else None
    made = embodied(machine, sum(seconds.values()) / 3600) if machine else None
    if made:
        notes.append(f"making the accelerators: {made.words}")
    if hourly and hourly.off_kwh:
        notes.append(
            f"{hourly.off_kwh:.4g} kWh of pauses are not counted: budget.hours_paused = "
            '"off" says that the machines are off, or at other work'
        )
    return Costs(
        usd=usd.so_far if usd else None,
        usd_to_go=usd.to_go if usd else None,
        usd_by_cause=usd.by_cause if usd else None,
        gco2e=carbon.so_far if carbon else None,
        gco2e_to_go=carbon.to_go if carbon else None,
        gco2e_by_cause=carbon.by_cause if carbon else None,
        kwh=power.so_far if power else None,
        kwh_to_go=power.to_go if power else None,
        market_gco2e=market.so_far if market else None,
        market_gco2e_to_go=market.to_go if market else None,
        embodied_gco2e=made.kg * 1000 if made else None,
        notes=tuple(notes),
        ledger=_ledger(view.account.ledger, energy, usd, carbon),
    )


def left_rank_s(view: RunView) -> float | None:
    """Return the rank-seconds to the end of a run, also of one that is stopped.

    At the pace of the run on all ranks, else of the plan, with the plan's share of time beside the
    steps.
    """
    if view.status in ("done", EARLY):
        return 0.0
    planned = view.launch.predicted
    pace_s = view.whole_step_s or planned.get("step_s") or view.step_s
    ranks = view.account.ranks or view.launch.ranks
    if not pace_s or not ranks or not view.steps:
        return None
    return float(pace_s * ranks * max(0, view.steps - view.step)) * _beside_steps(planned)


def _beside_steps(planned: Mapping[str, Any]) -> float:
    """Return the planned time of a run after its start over the planned time of its steps."""
    if "ledger" not in planned:
        return 1.0
    seconds = Ledger.from_json(planned["ledger"]).seconds
    steps_s = sum(seconds[Cause(name)] for name in STEP_CAUSES)
    beside_s = sum(seconds[cause] for cause in BESIDE_STEPS)
    return 1 + beside_s / steps_s if steps_s else 1.0


def _power(
    seconds: ByCause, energy: Energy | None, left_s: float | None, rates: CostRates
) -> AccruedCost | None:
    """Return kilowatt-hours, with cooling and distribution if the PUE is known."""
    if energy is None:
        return None
    pue = rates.pue.value if rates.pue else 1.0
    by_cause = {cause: joules * pue / J_PER_KWH for cause, joules in energy.by_cause.items()}
    # The remaining time is work: the low power of the start does not come again.
    working = [cause for cause in Cause if cause not in RESTING and seconds[cause] > 0]
    working_s = sum(seconds[cause] for cause in working)
    to_go = None
    if left_s is not None and (working_s or not left_s):
        each = sum(by_cause[cause] for cause in working) / working_s if working_s else 0.0
        to_go = left_s * each
    note = f"× PUE {pue:g} ({rates.pue.source})" if rates.pue else "of the machines alone"
    return AccruedCost(by_cause, to_go, Provenance(energy.provenance.source, note))


def _by_time(seconds: ByCause, left_s: float | None, rates: CostRates) -> AccruedCost | None:
    price = rates.usd_per_hour
    if price is None:
        return None
    each = price.value / 3600
    by_cause = {cause: each * s for cause, s in seconds.items()}
    hours = sum(seconds.values()) / 3600
    note = f"{hours:.4g} accelerator-hours × {price.value:g} USD ({price.source})"
    source: Source = "published" if price.source.startswith("catalog") else "measured"
    return AccruedCost(
        by_cause, None if left_s is None else each * left_s, Provenance(source, note)
    )


def _hourly(view: RunView, energy: Energy | None, rates: CostRates) -> HourlyBill | None:
    """Return the bill by the hours of the run's site; None where it has none."""
    hours = hours_of(view)
    if hours is None or energy is None or energy.by_time is None:
        return None
    return bill_by_hours(energy.by_time, hours, rates.pue.value if rates.pue else 1.0)


def _without_pauses(power: AccruedCost, hourly: HourlyBill) -> AccruedCost:
    return replace(power, by_cause=hourly.kwh) if hourly.off_kwh else power


def _of_hours(
    power: AccruedCost | None, hourly: HourlyBill | None, name: str, kind: str
) -> AccruedCost | None:
    """Return what the hours come to. The rest is taken at the mean of the hours so far."""
    amounts: ByCause | None = getattr(hourly, name, None)
    if power is None or amounts is None or hourly is None:
        return None
    each = sum(amounts.values()) / power.so_far if power.so_far else 0.0
    note = f"{kind}{power.so_far:.4g} kWh {hourly.words}; energy {power.where.note}"
    to_go = None if power.to_go is None else power.to_go * each
    return AccruedCost(amounts, to_go, Provenance(power.where.source, note))


def _electricity(
    power: AccruedCost | None, rates: CostRates, hourly: HourlyBill | None
) -> AccruedCost | None:
    if found := _of_hours(power, hourly, "usd", "electricity only, "):
        return found
    if power is None or rates.usd_per_kwh is None:
        return None
    return _times(power, rates.usd_per_kwh, "USD", "electricity only, ")


def _with_electricity(
    usd: AccruedCost, power: AccruedCost | None, rate: SourcedRate, hourly: HourlyBill | None
) -> AccruedCost:
    """Add the electricity of machines of one's own, whose hourly price has none in it."""
    if power is None:
        note = f"{usd.where.note}; without electricity: {NO_ENERGY}"
        return replace(usd, where=replace(usd.where, note=note))
    paid = _of_hours(power, hourly, "usd", "electricity ") or _times(
        power, rate, "USD", "electricity "
    )
    to_go = None if None in (usd.to_go, paid.to_go) else (usd.to_go or 0) + (paid.to_go or 0)
    return AccruedCost(
        {cause: each + paid.by_cause.get(cause, 0.0) for cause, each in usd.by_cause.items()},
        to_go,
        replace(usd.where, note=f"{usd.where.note} + {paid.where.note}"),
    )


def _carbon(
    power: AccruedCost | None, rates: CostRates, hourly: HourlyBill | None
) -> AccruedCost | None:
    if found := _of_hours(power, hourly, "gco2e", "location-based, "):
        return found
    if power is None or rates.gco2e_per_kwh is None:
        return None
    return _times(power, rates.gco2e_per_kwh, "gCO2e")


def _times(power: AccruedCost, factor: SourcedRate, unit: str, kind: str = "") -> AccruedCost:
    note = (
        f"{kind}{power.so_far:.4g} kWh × {factor.value:g} {unit} per kWh ({factor.source}); "
        f"energy {power.where.note}"
    )
    return AccruedCost(
        {cause: kwh * factor.value for cause, kwh in power.by_cause.items()},
        None if power.to_go is None else power.to_go * factor.value,
        Provenance(power.where.source, note),
    )


def _ledger(
    own: Ledger, energy: Energy | None, usd: AccruedCost | None, carbon: AccruedCost | None
) -> Ledger:
    why = NO_SITE if energy else NO_ENERGY
    where: dict[Quantity, Provenance] = {
        **own.provenance,
        "joules": energy.provenance if energy else Provenance("unknown", NO_ENERGY),
        "usd": usd.where if usd else Provenance("unknown", NO_PRICE),
        "gco2e": carbon.where if carbon else Provenance("unknown", why),
    }
    return Ledger(
        own.seconds,
        energy.by_cause if energy else None,
        usd.by_cause if usd else None,
        carbon.by_cause if carbon else None,
        where,
    )
