"""Costs of owning machines beside their purchase: rates of capital, upkeep and people.

They differ more between owners than anything else in the catalog, so each has a range, and a figure
of the user's own always wins. `facilities` has the costs of a place.
"""

from dataclasses import dataclass

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Cost(Fact):
    """One usual figure of owning."""

    low: float
    value: float
    high: float
    unit: str
    as_of: str  # year

    @property
    def words(self) -> str:
        """Return the source in words, with the year."""
        return f"catalog {self.as_of}, {self.source_of('value')}"


TABLE = Table.of_csv("costs", Cost)
all, find, names = TABLE.all, TABLE.find, TABLE.names
