"""`[price]` of a cluster file: rented on demand, reserved, spot, or owned; amounts with currency.

A plain amount is USD. `"1.95 EUR"` needs the rate in `exchange`; cents are refused, because nobody
can tell them from a price that is a hundred times too high.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from penstock.run.schema.section import (
    InvalidFields,
    NotNegative,
    Positive,
    PositiveCount,
    Seconds,
    Section,
    Share,
    Text,
    number,
)

Term = Literal["on-demand", "reserved", "spot", "owned"]
Place = Literal["colocation", "hall"]
CENTS = {"c", "ct", "cts", "cent", "cents", "¢", "eurocent", "eurocents", "usc", "pence"}
SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*(\S+)\s*", re.A)
_RATE = re.compile(r"\s*1\s+([A-Z]{3})\s*=\s*([0-9]+(?:\.[0-9]+)?)\s*USD\s*", re.A)
# Fields that belong to one term alone.
OF_SPOT = ("interruptions_per_day", "available", "regions", "on_demand_usd_per_hour")


@dataclass(frozen=True)
class Amount:
    """An amount of money in one currency."""

    value: float
    currency: str = "USD"

    def __str__(self) -> str:
        return f"{self.value:g} {self.currency}"


def amount(raw: object) -> Amount:
    """Read a plain number of USD, or text with a currency."""
    if isinstance(raw, Amount):
        return raw
    if not isinstance(raw, str):
        return Amount(number(least=0, below=1e300)(raw))
    match = _AMOUNT.fullmatch(raw)
    unit = match[2] if match else ""
    if unit.casefold() in CENTS:
        raise ValueError('an amount in cents; write whole units: 2.49 or "1.95 EUR"')
    code = SIGNS.get(unit, unit)
    if not match or not re.fullmatch("[A-Z]{3}", code):
        raise ValueError('not an amount of money; write 2.49 for USD, or "1.95 EUR"')
    return Amount(number(least=0, below=1e300)(float(match[1])), code)


def _shown(found: Amount) -> float | str:
    return found.value if found.currency == "USD" else f"{found.value!r} {found.currency}"


Money = Annotated[
    Amount,
    PlainValidator(amount),
    PlainSerializer(_shown),
    WithJsonSchema({"title": "money", "type": ["number", "string"]}),
]


class OwnedSection(Section):
    """The cost of owned machines. The catalog has a default for each field (`penstock catalog
    costs`), and the plan says where it used one.
    """

    purchase: Money | None = Field(
        None, description="Of one node with its accelerators; the catalog's street price."
    )
    network: Share | None = Field(
        None, description="Network between nodes, as a share of their purchase."
    )
    years: Positive | None = Field(None, description="Years until the machines are sold.")
    residual: Share | None = Field(
        None, description="What they are then sold for, as a share of the purchase."
    )
    capital_per_year: Share | None = Field(None, description="Cost of capital.")
    maintenance_per_year: Share | None = Field(
        None, description="Upkeep and spare parts, as a share of the purchase."
    )
    people: NotNegative | None = Field(None, description="People who run it, such as 0.2.")
    person_per_year: Money | None = Field(None, description="Cost of one of them.")
    place: Place = Field("colocation", description="A rented place, or a hall of one's own.")
    colocation_per_kw_month: Money | None = Field(
        None, description="Rent of the place, electricity apart."
    )
    hall_per_kw: Money | None = Field(None, description="Building a hall, per kW of machines.")
    hall_years: Positive | None = Field(None, description="Years that the hall is used.")


class PriceSection(Section):
    """Price of the machines. Without a price, plans show no USD."""

    usd_per_hour: Money | None = Field(
        None, description='Of one accelerator: 2.49, or "1.95 EUR" with `exchange`.'
    )
    term: Term = Field(
        "on-demand",
        description="How they are paid for. Owned machines take `[price.owned]` and no hourly "
        "price.",
    )
    exchange: tuple[Text, ...] = Field(
        (), description='Rates of other currencies: "1 EUR = 1.08 USD".'
    )
    source: Text | None = Field(None, description="Who named this price, and when.")
    delivery: Seconds | None = Field(
        None, description="From the order until the machines are there; now if left out."
    )
    utilisation: Share | None = Field(
        None,
        description="Share of the hours paid for in which they are used, by this run or others. "
        "Of reserved (all of them if left out) and owned machines (the catalog's).",
    )
    commitment: Seconds | None = Field(
        None, description="Of reserved machines: the length of the contract."
    )
    interruptions_per_day: NotNegative | None = Field(
        None, description="Of spot: how often it is taken back; 2.25 if left out."
    )
    available: Share | None = Field(
        None, description="Of spot: share of the time in which it is there; 75 % if left out."
    )
    regions: PositiveCount = Field(
        1, description="Of spot: regions that the run may move between, each with its own luck."
    )
    on_demand_usd_per_hour: Money | None = Field(
        None, description="Of spot: what the same machine costs on demand, for a deadline."
    )
    egress_usd_per_gb: Money | None = Field(
        None, description="For a checkpoint that leaves: the last one, and at each move of region."
    )
    owned: OwnedSection = Field(OwnedSection(), description="What owning costs.")

    @model_validator(mode="after")
    def _means_one_thing(self) -> Self:
        wrong = [*self._currencies(), *self._misplaced()]
        if self.term in ("reserved", "spot") and self.usd_per_hour is None:
            wrong.append(("usd_per_hour", f'missing; term = "{self.term}" needs the price'))
        if self.utilisation == 0:
            wrong.append(("utilisation", "nothing; write more than 0, such as 0.8"))
        if wrong:
            raise InvalidFields(*wrong)
        return self

    def _currencies(self) -> list[tuple[str, str]]:
        """Return what is wrong with rates, and with amounts that have none."""
        known = self.rates
        wrong = [
            ("exchange", f'"{text}": not a rate; write "1 EUR = 1.08 USD"')
            for text in self.exchange
            if not _RATE.fullmatch(text)
        ]
        wrong += [
            ("exchange", f"1 {code} is worth nothing; write its rate")
            for code, rate in known.items()
            if rate == 0
        ]
        for section, above in ((self, ""), (self.owned, "owned.")):
            for name in type(section).model_fields:
                found = getattr(section, name)
                if isinstance(found, Amount) and found.currency not in known:
                    fix = f'exchange = ["1 {found.currency} = … USD"]'
                    wrong.append((above + name, f"{found} without a rate; write {fix} too"))
        return wrong

    def _misplaced(self) -> list[tuple[str, str]]:
        """Return fields that this term does not have."""
        given, term = self.model_fields_set, self.term
        wrong = [
            (name, f'is of spot; write term = "spot", or leave it out (it is "{term}")')
            for name in OF_SPOT
            if name in given and term != "spot"
        ]
        if "commitment" in given and term != "reserved":
            wrong.append(("commitment", f'is of term = "reserved" (it is "{term}")'))
        if "utilisation" in given and term not in ("reserved", "owned"):
            wrong.append(("utilisation", f'is of reserved and owned machines (term is "{term}")'))
        if "owned" in given and term != "owned":
            wrong.append(("owned", f'needs term = "owned" (it is "{term}")'))
        if term == "owned" and self.usd_per_hour is not None:
            wrong.append(("usd_per_hour", "owned machines have none; write [price.owned]"))
        return wrong

    @property
    def rates(self) -> dict[str, float]:
        """Return USD for one unit of each currency."""
        found = (_RATE.fullmatch(text) for text in self.exchange)
        return {"USD": 1.0} | {match[1]: float(match[2]) for match in found if match}

    def usd(self, found: Amount | None) -> float | None:
        """Return an amount in USD."""
        return None if found is None else found.value * self.rates[found.currency]
