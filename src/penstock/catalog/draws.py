"""Draws: what one accelerator drew at rest, moving memory, multiplying and training."""

from dataclasses import dataclass

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Draw(Fact):
    """A mean over some seconds of one load, by the accelerator's own energy counter."""

    accelerator: str  # a name in the accelerators
    load: str  # idle, memory, matmul or training
    watts: float
    limit_w: float
    clock_mhz: float  # of its processors, the median
    temperature_c: float  # at the end
    rate: float | None  # what it did meanwhile
    rate_unit: str
    as_of: str


TABLE = Table.of_csv("draws", Draw)
all, find, names = TABLE.all, TABLE.find, TABLE.names
