"""Facilities: lead times, building costs, colocation, water and embodied carbon, with sources."""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Facility(Fact):
    """One published figure; low and high are the range of the sources."""

    topic: Literal[
        "node power",
        "water",
        "lead time",
        "capex",
        "colocation",
        "embodied carbon",
        "source carbon",
    ]
    low: float | None
    typical: float | None
    high: float | None
    unit: str
    year: int | None


TABLE = Table.of_csv("facilities", Facility)
all, find, names = TABLE.all, TABLE.find, TABLE.names
