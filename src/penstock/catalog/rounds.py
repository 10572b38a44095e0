"""Measured losses of replicas that take local steps or send by a codec, against data parallel."""

from dataclasses import dataclass

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

# Small batches of a worker (2k tokens) doubled every gap in the pilot, and 25M parameters halved
# them: the factors between which the cost of another model may be expected to lie.
OTHER_MODEL = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class RoundLoss(Fact):
    """The validation loss of one setting over that of data parallel, same optimizer and tokens."""

    optimizer: str
    replicas: int
    local_steps: int
    codec: str
    late: float  # share of a round by which what is exchanged is late; 0: training waits
    params_m: float  # millions of the model
    worker_tokens: int  # of a replica in a step
    seeds: int
    loss_percent: float
    spread_percent: float  # of seeds, or half of the range that was seen

    @property
    def low(self) -> float:
        """Return the lower end, as a share."""
        return (self.loss_percent - self.spread_percent) / 100

    @property
    def high(self) -> float:
        return (self.loss_percent + self.spread_percent) / 100


TABLE = Table.of_csv("rounds", RoundLoss)
all, find, names = TABLE.all, TABLE.find, TABLE.names
