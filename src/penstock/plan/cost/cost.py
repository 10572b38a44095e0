"""Money, energy and carbon of a run, where a price and a site are known.

No price, no USD. No carbon intensity, no CO2e. A number that nobody stands behind is left out.
"""

from dataclasses import dataclass

from penstock.catalog import prices
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.cost.embodied import EmbodiedCarbon, embodied
from penstock.plan.cost.owned import owned_cost
from penstock.plan.hardware.machine import Machine
from penstock.run.clusters.price import PriceSection
from penstock.run.schema.run import Run

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Bill:
    """The ledger with every known quantity, and its sums; None is unknown."""

    ledger: Ledger
    usd: float | None
    price: str  # what the USD stand on, in words
    energy_it_kwh: float | None  # machines and network
    energy_kwh: float | None  # with cooling and distribution where the PUE is known
    co2e_kg: float | None
    embodied: EmbodiedCarbon | None  # of making the accelerators; in no sum
    warnings: tuple[str, ...]
    notes: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class HourlyPrice:
    """The price of one accelerator-hour in USD, and its source."""

    usd: float
    source: str
    usd_per_kwh: float | None = None  # of electricity that is paid apart: machines of one's own


@dataclass(frozen=True)
class HourlyAmounts:
    """The sums of a schedule by hours. None is a column that the file of hours does not have."""

    usd: float | None  # of electricity
    gco2e: float | None  # location-based
    words: str


def no_price(usd: float) -> str:
    """Say why a limit on money is refused."""
    return (
        f"budget.usd = {usd:g}: no price is known for this machine, so the limit could not be "
        "kept; write cluster.usd_per_hour, or budget.hours"
    )


def named_in_catalog(run: Run) -> bool:
    """Tell whether `cluster.use` is a catalog name: such a machine is rented at a market price.
    This machine and a cluster file are not.
    """
    return run.cluster.use != "here" and not run.cluster.use.endswith(".toml")


def price_of(run: Run, machine: Machine) -> HourlyPrice | None:
    """Return the user's price, by the terms of the cluster file; else, for a machine named from the
    catalog, the catalog's, with its date.
    """
    terms = machine.price
    if terms is not None and terms.term == "owned":
        return _owned(machine, terms)
    if machine.usd_per_hour is not None:
        source = machine.sources.get("usd_per_hour", "given")
        if terms is None:
            return HourlyPrice(machine.usd_per_hour, source)
        return _rented(machine.usd_per_hour, source, terms)
    if not named_in_catalog(run) or machine.fact is None:
        return None
    row = prices.of(machine.fact.name)
    return HourlyPrice(row.usd_per_hour, f"catalog, {row.term}, {row.as_of}") if row else None


def price_at_work(run: Run, machine: Machine) -> HourlyPrice | None:
    """Return the price of an accelerator-hour with all that it costs at work: what money buys.

    Electricity that is paid apart is in it, at the full draw.
    """
    price = price_of(run, machine)
    if price is None or price.usd_per_kwh is None or machine.price is None:
        return price
    busy = owned_cost(machine, machine.price).busy_usd_per_hour
    return HourlyPrice(price.usd + busy, f"{price.source}, and electricity at work")


def _owned(machine: Machine, terms: PriceSection) -> HourlyPrice:
    own = owned_cost(machine, terms)
    words = (
        f"owned, used {100 * own.utilisation:g} % of the time, with all but electricity, "
        f"{machine.sources.get('price', 'given')}"
    )
    return HourlyPrice(own.usd_per_hour, words, machine.usd_per_kwh)


def _rented(usd: float, source: str, terms: PriceSection) -> HourlyPrice:
    """Return a rent; of a contract whose hours are not all used, that of an hour that is."""
    term = "" if terms.term == "on-demand" else terms.term
    words = ", ".join(filter(None, [term, terms.source, source]))
    if terms.usd_per_hour and terms.usd_per_hour.currency != "USD":
        rate = terms.rates[terms.usd_per_hour.currency]
        words += f", {terms.usd_per_hour} at {rate:g} USD"
    if terms.utilisation is not None:
        words += f", {usd:g} USD with {100 * terms.utilisation:g} % of its hours used"
        usd /= terms.utilisation
    return HourlyPrice(usd, words)


def bill(run: Run, machine: Machine, ledger: Ledger, hourly: HourlyAmounts | None = None) -> Bill:
    """Put USD and gCO2e beside a ledger's seconds and joules; `hourly` wins over yearly means."""
    notes: dict[str, tuple[str, ...]] = {}
    warnings: list[str] = []
    joules = ledger.sum("joules")
    it_kwh = None if joules is None else joules / J_PER_KWH
    kwh = it_kwh * (machine.pue or 1.0) if it_kwh is not None else None
    if it_kwh is None or kwh is None:
        warnings.append(
            f"energy: the power of {machine.accelerator} is not known; give accelerator.tdp_w in a "
            "cluster file"
        )
    else:
        pue = f"× PUE {machine.pue:g}" if machine.pue else "(no PUE given: cooling not included)"
        notes["energy_it_kwh"] = (f"{it_kwh:.4g} kWh = joules of the ledger / 3.6e6",)
        notes["energy_kwh"] = (f"{kwh:.4g} kWh = {it_kwh:.4g} kWh of the machines {pue}",)
    ledger, usd, price = _with_usd(run, machine, ledger, kwh, notes, hourly)
    if usd is None:
        warnings.append("USD: no price is known; write cluster.usd_per_hour in the run file")
    if machine.price is not None and machine.price.term == "spot":
        warnings.append(
            'price.term = "spot": how often it is taken back is not counted here; `penstock '
            "compare` plays it"
        )
    ledger, co2e_kg = _with_carbon(machine, ledger, kwh, notes, hourly)
    if kwh is not None and co2e_kg is None:
        warnings.append(
            'CO2e: no site is known; name one, such as cluster.site = "us-east-1" (`penstock '
            "catalog sites`), or write cluster.carbon"
        )
    made = embodied(machine, ledger.total / 3600)
    if made:
        notes["embodied_co2e_kg"] = (made.words,)
    return Bill(ledger, usd, price, it_kwh, kwh, co2e_kg, made, tuple(warnings), notes)


def _with_usd(
    run: Run,
    machine: Machine,
    ledger: Ledger,
    kwh: float | None,
    notes: dict[str, tuple[str, ...]],
    hourly: HourlyAmounts | None,
) -> tuple[Ledger, float | None, str]:
    price = price_of(run, machine)
    if price is not None:
        each = {cause: s / 3600 * price.usd for cause, s in ledger.seconds.items()}
        words = f"{price.usd:.4g} USD per accelerator-hour ({price.source})"
        usd = ledger.total / 3600 * price.usd
        sums = f"{ledger.total / 3600:.5g} accelerator-hours × {words}"
        if price.usd_per_kwh is not None and kwh is not None:
            given = hourly.usd if hourly else None
            paid = kwh * price.usd_per_kwh if given is None else given
            usd += paid
            each = {cause: each[cause] + more for cause, more in _spread(paid, ledger).items()}
            electricity = (
                f"electricity {hourly.words}"
                if hourly and given is not None
                else f"electricity at {price.usd_per_kwh:g} USD per kWh"
            )
            sums += f" + {kwh:.4g} kWh of {electricity}"
            words += f" and {electricity}"
        notes["usd"] = (f"{usd:.5g} USD = {sums}",)
        where = Provenance("estimated", words)
        return ledger.with_quantity("usd", each, where), usd, words
    if hourly and hourly.usd is not None and ledger.joules is not None:
        words = f"electricity only, {hourly.words}"
        notes["usd"] = (f"{hourly.usd:.5g} USD: {words}; no hourly price is given",)
        where = Provenance("estimated", words)
        return ledger.with_quantity("usd", _spread(hourly.usd, ledger), where), hourly.usd, words
    if machine.usd_per_kwh is not None and kwh is not None and ledger.joules is not None:
        words = f"electricity only, {machine.usd_per_kwh:g} USD per kWh"
        usd = kwh * machine.usd_per_kwh
        each = _spread(usd, ledger)
        notes["usd"] = (f"{usd:.5g} USD = {kwh:.4g} kWh: {words}; no hourly price is given",)
        return ledger.with_quantity("usd", each, Provenance("estimated", words)), usd, words
    notes["usd"] = ("no price is known, so none is invented: cluster.usd_per_hour gives one",)
    return ledger, None, ""


def _with_carbon(
    machine: Machine,
    ledger: Ledger,
    kwh: float | None,
    notes: dict[str, tuple[str, ...]],
    hourly: HourlyAmounts | None,
) -> tuple[Ledger, float | None]:
    if hourly and hourly.gco2e is not None and ledger.joules is not None:
        notes["co2e_kg"] = (f"{hourly.gco2e / 1000:.4g} kg, location-based, {hourly.words}",)
        where = Provenance("estimated", hourly.words)
        return ledger.with_quantity("gco2e", _spread(hourly.gco2e, ledger), where), (
            hourly.gco2e / 1000
        )
    if kwh is None or machine.gco2e_per_kwh is None:
        notes["co2e_kg"] = ("no energy or no site with a carbon intensity: left out",)
        return ledger, None
    grams = kwh * machine.gco2e_per_kwh
    source = machine.sources.get("gco2e_per_kwh", "given")
    words = f"{machine.gco2e_per_kwh:g} gCO2e per kWh ({source})"
    notes["co2e_kg"] = (f"{grams / 1000:.4g} kg = {kwh:.4g} kWh × {words}",)
    where = Provenance("estimated", words)
    return ledger.with_quantity("gco2e", _spread(grams, ledger), where), grams / 1000


def _spread(total: float, ledger: Ledger) -> dict[Cause, float]:
    """Spread a total over the causes in proportion to their joules."""
    joules, amounts = ledger.sum("joules"), ledger.joules
    assert amounts is not None
    return {cause: total * j / joules if joules else 0.0 for cause, j in amounts.items()}
