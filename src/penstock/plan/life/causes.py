"""Causes of failures: how often each comes, and how much of the machine it takes down.

The shares of accelerators, hosts and network are those of the one run that published every cause
(Llama 3, `penstock catalog failures`). Power, cooling, sites and stragglers are estimated: nobody
has published rates for them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from penstock.catalog import failures

FaultCause = Literal[
    "accelerator", "node", "switch", "power", "cooling", "corruption", "site", "software", "cut",
    "preemption",
]  # fmt: skip
# Causes that take one compute tray of a rack, and nothing else in it.
OF_A_TRAY: tuple[FaultCause, ...] = ("accelerator", "node")
YEAR_S = 365.25 * 86400.0


@dataclass(frozen=True)
class FaultClass:
    """One cause of failures."""

    name: FaultCause
    share: float  # of the hardware failures of a node
    nodes: int  # that one such failure takes along
    stays: float  # chance that the node can go on after a restart
    repair_s: float | None  # until lost nodes are back; None: as failures.repair
    reason: str  # as drivers and supervisors word it; quarantine reads it


# Shares of the hardware failures, estimated: power of a rack, cooling of a row.
POWER_SHARE, COOLING_SHARE = 0.004, 0.001
# Nodes behind one rack's power, and in one row that is cooled together: four DGX H100 fill a rack
# of 40 kW.
RACK_NODES, ROW_NODES = 4, 32
# Failures of a whole site, per site and second: one in ten years that ends the run (estimated).
SITE_PER_S = 0.1 / YEAR_S
# After most device errors a reset brings the node back at once (estimated).
RESET_SHARE = 0.7
LINK_SHARE = 0.8  # of network failures: a flapping link, which is back with the restart
REPAIR_S = 86400.0  # of a lost node, mean (estimated)
# Thermal throttling and slow devices: onsets per node and second, how much slower, how long.
STRAGGLER_PER_S = 0.5 / (1000 * 86400.0)
STRAGGLER_FACTOR, STRAGGLER_SPREAD = 0.12, 0.6  # the median excess over 1, and its log-spread
STRAGGLER_S = 3600.0
# Storage that answers late for a while: all ranks wait for data (estimated).
DATA_STALL_PER_S, DATA_STALL_S = 0.2 / 86400.0, 120.0
# Share of hardware failures that only show as a hang: watchdog timeouts and silent devices.
HANG_SHARE = 0.1
# Silent corruption that every replica took over is found late: by its loss (estimated).
LATE_SHARE, LATE_S = 0.5, 2 * 3600.0
LEMONS = 0.05  # 3 of 63 nodes caused half of the exclusions (Lablup)


def nodes_taken(cause: FaultClass, domain_nodes: int) -> int:
    """Return the nodes that one failure takes along, where a rack-scale domain has so many nodes.

    The switches and supplies of such a rack are its own. 0 is for other nodes.
    """
    if not domain_nodes:
        return cause.nodes
    racks = {"switch": 1, "power": 1, "cooling": ROW_NODES // RACK_NODES}.get(cause.name, 0)
    return racks * domain_nodes or cause.nodes


@cache
def hardware_classes() -> tuple[FaultClass, ...]:
    """Return the classes whose rates scale with nodes; their shares add up to 1."""
    rows = {row.name: row.events or 0 for row in failures.measured("cause_share")}
    components = {row.name: row.component for row in failures.measured("cause_share")}
    corrupt = rows["Silent data corruption"]
    gpu = sum(n for name, n in rows.items() if components[name] == "gpu") - corrupt
    host = sum(n for name, n in rows.items() if components[name] in ("host", "maintenance"))
    network = sum(n for name, n in rows.items() if components[name] == "network")
    left = (1 - POWER_SHARE - COOLING_SHARE) / (gpu + host + network + corrupt)
    return (
        FaultClass("accelerator", gpu * left, 1, RESET_SHARE, None, "uncorrectable ECC error"),
        FaultClass("node", host * left, 1, 0.0, None, "host lost"),
        FaultClass("switch", network * left, 1, LINK_SHARE, 4 * 3600.0, "link down"),
        FaultClass("corruption", corrupt * left, 1, 0.0, None, "replicas differ"),
        FaultClass("power", POWER_SHARE, RACK_NODES, 0.0, 4 * 3600.0, "rack lost power"),
        FaultClass("cooling", COOLING_SHARE, ROW_NODES, 0.0, 4 * 3600.0, "row too hot"),
    )


SITE = FaultClass("site", 0.0, 0, 0.0, 6 * 3600.0, "site lost")
SOFTWARE = FaultClass("software", 0.0, 0, 1.0, None, "software failure")
CUT = FaultClass("cut", 0.0, 0, 1.0, None, "network between sites cut")
PREEMPTION = FaultClass("preemption", 0.0, 0, 0.0, None, "preempted")
CAUSES: tuple[FaultCause, ...] = (
    *(one.name for one in hardware_classes()),
    "site", "software", "cut", "preemption",
)  # fmt: skip
