"""Power: what metered nodes drew while they trained. The planner's power model is fitted here."""

from dataclasses import dataclass

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

# A log that covers less of its run than this does not tell the run's mean.
WHOLE_LOG = 0.85


@dataclass(frozen=True, kw_only=True)
class MeteredRun(Fact):
    """One benchmark on one cluster, at the AC meter of its nodes; switches are not in it."""

    accelerator: str  # a name in the accelerators
    accelerators: int
    nodes: int
    cooling: str
    benchmark: str
    global_batch: int
    run_s: float
    node_w: float  # mean over nodes and runs
    busy: float  # share of the time that does what the run on one node does
    log_share: float  # of the run that the power log covers

    @property
    def whole(self) -> bool:
        """Good enough to fit on."""
        return self.log_share >= WHOLE_LOG


TABLE = Table.of_csv("power", MeteredRun)
all, find, names = TABLE.all, TABLE.find, TABLE.names
