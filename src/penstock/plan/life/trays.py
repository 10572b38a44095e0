"""Rack-scale domains: how many nodes one has, and the compute trays that fail one by one."""

from dataclasses import dataclass

from penstock.catalog import nodes
from penstock.plan.hardware.machine import Machine


@dataclass(frozen=True)
class DomainTrays:
    """The trays of a rack domain such as GB200 NVL72; zeros for all other machines."""

    domain_nodes: int = 0
    tray: int = 0  # accelerators that one failure takes; 0: a node is no more than one tray
    spares: int = 0  # trays of each node that stand by


NO_TRAYS = DomainTrays()


def trays_of(machine: Machine) -> DomainTrays:
    """Return the trays of a machine, as the catalog has them."""
    row = next(
        (row for row in nodes.TABLE if row.tray and row.accelerator == machine.accelerator), None
    )
    if row is None or row.tray is None:
        return NO_TRAYS
    return DomainTrays(
        max(1, row.domain // machine.per_node),
        row.tray if machine.per_node > row.tray else 0,
        machine.spare_trays,
    )
