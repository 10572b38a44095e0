"""Racks of a machine: how many nodes a rack holds, what it draws, and how many fit a limit.

A rack-scale domain is one rack and cannot be cut. Other nodes are put into a rack until its places,
its feed or its cooling is used up.
"""

from dataclasses import dataclass
from math import floor

from penstock.plan.hardware.machine import Machine
from penstock.plan.power.host import host_power, is_rack_scale
from penstock.plan.power.power import cooling_class, network_watts, node_power


@dataclass(frozen=True)
class RackUnit:
    """The least that goes into a rack: a node, or a whole rack-scale domain."""

    accelerators: int
    watts: float  # at work, all of it heat
    rated_w: float | None  # of its supplies
    most: int  # in a rack, by height

    def in_rack(self, limit_w: float | None) -> int:
        """Return how many units a rack of this limit holds; 0 when not even one fits."""
        if limit_w is None:
            return self.most
        return min(self.most, floor(limit_w / self.watts * (1 + 1e-9)))


def unit_of(machine: Machine) -> RackUnit | None:
    """Return the unit of a machine; None where its power is not known."""
    levels = node_power(machine, cooling_class(machine.cooling) or "air")
    if levels is None:
        return None
    host = host_power(machine.fact)
    if not is_rack_scale(machine.fact):
        return RackUnit(machine.per_node, levels.busy_w, machine.rated_w, host.most_in_rack)
    assert machine.fact
    size = max(machine.per_node, min(machine.fact.domain, machine.accelerators))
    rated = machine.rated_w and machine.rated_w * size / machine.per_node
    return RackUnit(size, levels.busy_w * size / machine.per_node, rated, 1)


def site_watts_each(machine: Machine) -> float | None:
    """Return the watts of one accelerator at the feed of the site: host, switches, cooling."""
    levels = node_power(machine, cooling_class(machine.cooling) or "air")
    if levels is None:
        return None
    return (levels.busy_w / machine.per_node + network_watts(machine)) * (machine.pue or 1.0)
