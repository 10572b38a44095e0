"""Nodes: common systems and cloud instances, their hosts, network cards and power."""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Node(Fact):
    """One machine, or one rack where the rack is what is sold."""

    setting: Literal["on-prem", "cloud", "on-prem or cloud", "marketplace"]
    accelerator: str  # a name in the accelerators
    accelerators: int
    domain: int  # accelerators in the scale-up domain; above `accelerators` it spans nodes
    tray: int | None  # accelerators of a compute tray, where a node is a rack of several
    nics: int | None
    nic_gbit_per_s: float | None
    scaleout_gbit_per_s: float | None  # all cards together
    host_cpu: str
    host_cores: int | None
    host_vcpus: int | None
    host_memory_gib: float | None
    nvme_tb: float | None
    nvme_read_gb_per_s: float | None
    rated_w: float | None  # the most the supplies give; training draws less
    training_w_low: float | None  # mean draw while training
    training_w_high: float | None
    cooling: str


TABLE = Table.of_csv("nodes", Node)
all, find, names = TABLE.all, TABLE.find, TABLE.names
