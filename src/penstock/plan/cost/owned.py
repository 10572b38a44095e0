"""The cost of owned machines: purchase, capital, network, upkeep, people, place, electricity.

    an hour that is used = (fixed costs of a year + electricity at rest) / hours used in it
                         + electricity at work

The fixed costs are paid whether the machines work or not, so they are shared by the hours in which
they do. Purchase less resale is an annuity: the same amount every year, with interest.
"""

from dataclasses import dataclass

from penstock.catalog import costs, facilities
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import MOST_IN_A_NODE, Machine
from penstock.plan.power.power import cooling_class, plug_levels
from penstock.run.clusters.price import OwnedSection, PriceSection

HOURS_A_YEAR = 8766.0
RESIDUAL_YEARS = 3.0  # that the published share is of


@dataclass(frozen=True)
class CostItem:
    """One cost of a year, for all machines together."""

    name: str
    usd_per_year: float
    words: str  # how it came about, with units
    source: str

    def to_json(self) -> dict[str, str | float]:
        return {
            "name": self.name,
            "usd_per_year": self.usd_per_year,
            "how": self.words,
            "source": self.source,
        }


@dataclass(frozen=True)
class OwnedCost:
    """The cost of an owned cluster, by item."""

    items: tuple[CostItem, ...]  # of a year, used or not; electricity apart
    node_usd: float  # purchase of one node
    purchase_usd: float  # of all nodes and the network between them
    hall_usd: float  # paid at the start too; nothing in a rented place
    interest_usd_per_year: float  # that the items hold
    accelerators: int
    utilisation: float
    years: float
    busy_usd_per_hour: float  # electricity of one accelerator at work
    rest_usd_per_hour: float  # and at rest

    @property
    def fixed_usd_per_year(self) -> float:
        return sum(item.usd_per_year for item in self.items)

    @property
    def usd_per_hour(self) -> float:
        """Return what one accelerator costs in an hour that is used, before its electricity."""
        fixed = self.fixed_usd_per_year / HOURS_A_YEAR / self.accelerators
        unused = (1 - self.utilisation) / self.utilisation
        return fixed / self.utilisation + unused * self.rest_usd_per_hour

    @property
    def running_usd_per_year(self) -> float:
        """Return what is paid in a year beside the purchase, at this utilisation."""
        used = self.utilisation
        hourly = used * self.busy_usd_per_hour + (1 - used) * self.rest_usd_per_hour
        paid = sum(i.usd_per_year for i in self.items if i.name not in PAID_AT_THE_START)
        return paid + self.interest_usd_per_year + hourly * HOURS_A_YEAR * self.accelerators


COLOCATION = "colocation US primary markets"
AIR_HALL, LIQUID_HALL = "conventional facility without IT", "liquid-cooled facility without IT"
PAID_AT_THE_START = ("depreciation", "capital", "hall")


def owned_cost(machine: Machine, price: PriceSection) -> OwnedCost:
    """Return the costs of owning a machine; refuse where one of them cannot be known."""
    levels = plug_levels(machine, machine.cooling)
    where = f'{machine.name}: price.term = "owned"'
    if levels is None:
        raise PenstockError(f"{where} needs the power of {machine.accelerator}: accelerator.tdp_w")
    if machine.usd_per_kwh is None:
        raise PenstockError(
            f"{where} needs a price of electricity: write site.usd_per_kwh, or a site.name of "
            "`penstock catalog sites` that has one"
        )
    return _Owner(machine, price).cost(levels[0].busy_w / 1e3, levels[0].rest_w / 1e3)


@dataclass(frozen=True)
class _Owner:
    """The figures of one owner: stated ones, else the catalog's."""

    machine: Machine
    price: PriceSection

    @property
    def own(self) -> OwnedSection:
        return self.price.owned

    def cost(self, busy_kw: float, rest_kw: float) -> OwnedCost:
        machine, nodes = self.machine, self.machine.nodes
        node_usd, node_source = self._node()
        network, network_source = self._figure("network", "network") if nodes > 1 else (0.0, "")
        years, years_source = self._figure("years", "years")
        residual, residual_source = self._residual(years)
        rate, rate_source = self._figure("capital_per_year", "capital")
        purchase = nodes * node_usd * (1 + network)
        worn = purchase * (1 - residual) / years
        interest = annuity(purchase, residual * purchase, rate, years) - worn
        kw = busy_kw * machine.accelerators
        hall_years, _ = self._figure("hall_years", "hall years")
        hall_usd, place = self._place(kw, rate, hall_years)
        upkeep, upkeep_source = self._figure("maintenance_per_year", "maintenance")
        used, _ = self.utilisation()
        wide = f", {100 * network:g} % network ({network_source})" if network else ""
        bought = f"{nodes} × {node_usd:,.0f} USD a node{wide}"
        items = (
            CostItem(
                "depreciation",
                worn,
                f"{bought}, over {years:g} years to {100 * residual:.0f} %",
                f"{node_source}; years: {years_source}; residual: {residual_source}",
            ),
            CostItem(
                "capital", interest, f"{100 * rate:g} % a year of what is tied up", rate_source
            ),
            CostItem(
                "maintenance",
                upkeep * purchase,
                f"{100 * upkeep:g} % of {purchase:,.0f} USD a year",
                upkeep_source,
            ),
            self._people(),
            place,
        )
        pue, kwh_usd = machine.pue or 1.0, machine.usd_per_kwh or 0.0
        return OwnedCost(
            items,
            node_usd,
            purchase,
            hall_usd,
            interest + place.usd_per_year - hall_usd / hall_years if hall_usd else interest,
            machine.accelerators,
            used,
            years,
            busy_kw * pue * kwh_usd,
            rest_kw * pue * kwh_usd,
        )

    def utilisation(self) -> tuple[float, str]:
        if self.price.utilisation is not None:
            return self.price.utilisation, self._stated
        row = costs.find("utilisation")
        return row.value, row.words

    @property
    def _stated(self) -> str:
        return self.price.source or self.machine.sources.get("price", "given")

    def _figure(self, field: str, row_name: str) -> tuple[float, str]:
        """Return a figure and its source: the file's, else the catalog's."""
        found = getattr(self.own, field)
        if found is not None:
            return found, self._stated
        row = costs.find(row_name)
        return row.value, row.words

    def _amount(self, field: str, row_name: str) -> tuple[float, str]:
        """Return an amount in USD and its source."""
        found = self.price.usd(getattr(self.own, field))
        if found is not None:
            return found, self._stated
        row = costs.find(row_name)
        return row.value, row.words

    def _node(self) -> tuple[float, str]:
        """Return the purchase of one node."""
        found = self.price.usd(self.own.purchase)
        if found is not None:
            return found, self._stated
        chip = self.machine.fact
        if chip is None or chip.price_usd_low is None or chip.price_usd_high is None:
            raise PenstockError(
                f"{self.machine.name}: the catalog has no purchase price of "
                f"{self.machine.accelerator}; write price.owned.purchase, in USD for a node"
            )
        each = (chip.price_usd_low + chip.price_usd_high) / 2
        source = f"catalog: {chip.source_of('price_usd_low')}"
        if chip.domain > MOST_IN_A_NODE:
            return each * self.machine.per_node, source
        host = costs.find("node over its accelerators")
        words = f"{source}; × {host.value:g} for the host ({host.words})"
        return each * self.machine.per_node * host.value, words

    def _residual(self, years: float) -> tuple[float, str]:
        if self.own.residual is not None:
            return self.own.residual, self._stated
        row = costs.find("residual after 3 years")
        words = f"{row.words}, the same share lost every year"
        return row.value ** (years / RESIDUAL_YEARS), words

    def _people(self) -> CostItem:
        person, person_source = self._amount("person_per_year", "person")
        if self.own.people is not None:
            count, source = self.own.people, self._stated
        else:
            least, each = costs.find("least people"), costs.find("nodes per person")
            count = max(least.value, self.machine.nodes / each.value)
            source = f"{each.words}; {least.words}"
        words = f"{count:.3g} people × {person:,.0f} USD a year"
        return CostItem("people", count * person, words, f"{source}; {person_source}")

    def _place(self, kw: float, rate: float, years: float) -> tuple[float, CostItem]:
        """Return what a hall costs to build, and the place's cost of a year."""
        if self.own.place == "colocation":
            each, source = self._place_usd("colocation_per_kw_month", COLOCATION)
            words = f"{kw:,.1f} kW × {each:g} USD a month, electricity apart"
            return 0.0, CostItem("colocation", 12 * each * kw, words, source)
        air = cooling_class(self.machine.cooling) in ("air", None)
        each, source = self._place_usd("hall_per_kw", AIR_HALL if air else LIQUID_HALL)
        built = each * kw
        words = f"{kw:,.1f} kW × {each:,.0f} USD, over {years:g} years at {100 * rate:g} %"
        return built, CostItem("hall", annuity(built, 0.0, rate, years), words, source)

    def _place_usd(self, field: str, row_name: str) -> tuple[float, str]:
        """Return USD per kW of a place, and the source."""
        found = self.price.usd(getattr(self.own, field))
        if found is not None:
            return found, self._stated
        row = facilities.find(row_name)
        assert row.typical is not None
        # A million USD per MW is a thousand per kW.
        scale = 1e3 if row.unit.startswith("M USD per MW") else 1.0
        return row.typical * scale, f"catalog {row.year}, {row.source_of('typical')}"


def annuity(now: float, later: float, rate: float, years: float) -> float:
    """Return the yearly payment for an amount now, of which `later` comes back at the end."""
    if rate == 0:
        return (now - later) / years
    gone: float = (1 + rate) ** -years
    return (now - later * gone) * rate / (1 - gone)
