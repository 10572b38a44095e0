"""Prices of an accelerator-hour at a date. A summary for planning, not a quote.

Prices move, so every row has its date. A price that the user gives always wins over these.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.catalog import accelerators
from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


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
