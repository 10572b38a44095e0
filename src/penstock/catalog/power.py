"""Measured power: of metered nodes in training, and of accelerators under known loads.

The planner's power model is fitted to the nodes.
"""

from dataclasses import dataclass

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

# A log that covers less of its run than this does not give the mean of the run.
WHOLE_LOG = 0.85


@dataclass(frozen=True, kw_only=True)
class MeteredRun(Fact):
    """One benchmark on one cluster, metered at the AC input of its nodes, without switches."""

    accelerator: str  # a name in the accelerators
    accelerators: int
    nodes: int
    cooling: str
    benchmark: str
    global_batch: int
    run_s: float
    node_w: float  # mean over nodes and runs
    busy: float  # share of the time with the same work as a run on one node
    log_share: float  # of the run that the power log covers

    @property
    def whole(self) -> bool:
        """Whether the log is complete enough to fit a model to."""
        return self.log_share >= WHOLE_LOG


@dataclass(frozen=True, kw_only=True)
class AcceleratorDraw(Fact):
    """Mean power of one accelerator under one load, over some seconds, by its energy counter."""

    accelerator: str  # a name in the accelerators
    load: str  # idle, memory, matmul or training
    watts: float
    limit_w: float
    clock_mhz: float  # of its processors, the median
    temperature_c: float  # at the end
    rate: float | None  # what it did meanwhile
    rate_unit: str
    as_of: str


@dataclass(frozen=True, kw_only=True)
class CappedDraw(Fact):
    """One load on one accelerator under one power limit (`nvidia-smi -pl`)."""

    accelerator: str  # a name in the accelerators
    load: str  # memory, matmul or training
    limit_w: float
    tdp_w: float
    watts: float  # mean, by its energy counter
    clock_mhz: float
    speed: float  # of the speed under the highest limit
    as_of: str


TABLE = Table.of_csv("power", MeteredRun)
all, find, names = TABLE.all, TABLE.find, TABLE.names
DRAWS = Table.of_csv("draws", AcceleratorDraw)
CAPS = Table.of_csv("caps", CappedDraw)
