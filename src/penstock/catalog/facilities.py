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
    accelerators: tuple[str, ...] = ()  # names of those whose making a figure counts
    holds: int | None = None  # of them, in what the figure is for
    year: int | None = None


TABLE = Table.of_csv("facilities", Facility)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def embodied(accelerator: str) -> Facility | None:
    """Return what making this accelerator took, where somebody published it."""
    rows = (row for row in TABLE if row.topic == "embodied carbon" and row.typical)
    return next((row for row in rows if row.holds and accelerator in row.accelerators), None)
