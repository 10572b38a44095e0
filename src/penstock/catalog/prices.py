"""Prices of an accelerator-hour at a date. A summary for planning, not a quote.

Prices move, so every row has its date. A price that the user gives always wins over these.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.catalog import accelerators
from penstock.catalog.fact import Fact
from penstock.catalog.table import Table
from penstock.errors import PenstockError

# A price outside of the catalog's range by these factors is in cents, or that of a whole node.
TOO_HIGH, TOO_LOW = 2.0, 0.1
NEVER_USD = 100.0  # of one accelerator for an hour, where the catalog knows no price


@dataclass(frozen=True, kw_only=True)
class Price(Fact):
    """USD per accelerator-hour for one accelerator and one term, over providers."""

    accelerator: str  # a name in the accelerators
    term: str  # on-demand, spot, reserved-1y
    usd_per_hour: float  # the median provider
    as_of: str  # year and month
    usd_per_hour_low: float | None = None  # the cheapest provider
    usd_per_hour_high: float | None = None  # the dearest provider
    providers: int | None = None  # how many


TABLE = Table.of_csv("prices", Price)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def load(path: Path) -> Table[Price]:
    """Load a user's own prices: a CSV with the columns of `Price`."""
    return Table.of_csv("prices", Price, path)


def of(accelerator: str, term: str = "on-demand", table: Table[Price] = TABLE) -> Price | None:
    """Return the price of an accelerator, by any of its names; None if the table has none."""
    name = accelerators.find(accelerator).name
    rows = (row for row in table if row.accelerator == name and row.term == term)
    return next(rows, None)


def refuse_other_unit(usd: float, accelerator: str, where: str) -> None:
    """Refuse a price that looks like cents, or like that of a whole node."""
    high = max(_known(accelerator), default=NEVER_USD / TOO_HIGH)
    if usd > TOO_HIGH * high:
        raise _other_unit(usd, accelerator, where)


def refuse_far_off(usd: float, accelerator: str, where: str) -> None:
    """Refuse an offer's price that is far from all others: too high, or too low to be meant."""
    refuse_other_unit(usd, accelerator, where)
    if usd < TOO_LOW * min(_known(accelerator), default=0.0):
        raise _other_unit(usd, accelerator, where)


def _known(accelerator: str) -> list[float]:
    """Return the lowest and highest prices that the catalog has of an accelerator."""
    rows = [row for row in TABLE if row.accelerator == accelerator]
    ends = [(row.usd_per_hour_low, row.usd_per_hour, row.usd_per_hour_high) for row in rows]
    return [usd for row in ends for usd in row if usd is not None]


def _other_unit(usd: float, accelerator: str, where: str) -> PenstockError:
    known = _known(accelerator)
    seen = (
        f"the catalog knows {min(known):g} to {max(known):g}"
        if known
        else "nothing costs that much"
    )
    return PenstockError(
        f"{where} = {usd:g} for one {accelerator}: {seen}. Is it in cents, or of a "
        "whole node? Write USD of one accelerator for an hour"
    )
