"""Networks: links by scope, with line rates and the measured rates of collectives."""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Network(Fact):
    """One kind of link. Rates are per direction."""

    scope: Literal["module", "node", "rack", "pod", "scale-out", "wan"]
    gb_per_s: float | None
    per: str  # what has this rate: accelerator, port, slot, node, host
    latency_us: float | None
    latency_is: str  # what was measured; a hop and a round trip are not comparable
    allreduce_gb_per_s: float | None  # bus bandwidth of a large all-reduce
    allreduce_at: str
    nccl_gb_per_s: float | None  # what NCCL's own tuner assumes
    line_share: float | None  # achieved over `gb_per_s`, large messages


TABLE = Table.of_csv("networks", Network)
all, find, names = TABLE.all, TABLE.find, TABLE.names
