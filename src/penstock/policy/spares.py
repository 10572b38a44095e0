"""The hosts that work and the hosts that wait as spares."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AvailableHost:
    """A host that is there, in the order in which hosts came."""

    node: str
    slots: int  # ranks that it can run
    working: bool = False  # has ranks of the present attempt
    leaving: bool = False  # has notice of preemption
    left_out: bool = False  # in quarantine
    spoiled: bool = False  # works on an accelerator that is in quarantine
    idle: bool = False  # belongs to the present attempt, whose hour has no power for its ranks

    @property
    def fit(self) -> bool:
        return self.slots > 0 and not self.leaving and not self.left_out


def choose_hosts(hosts: Sequence[AvailableHost], nodes: int, first: str) -> list[str]:
    """Return the hosts of the next attempt, at most `nodes` of them.

    `first`, the host of the supervisor, comes first where it can: rank 0 is then beside it. Those
    that work already stay before those that wait; what they hold in memory need not travel.
    """
    fit = [host for host in hosts if host.fit]
    fit.sort(key=lambda host: (host.node != first, not host.working))  # stable: as they came
    return [host.node for host in fit[:nodes]]


def reason_to_restart(hosts: Sequence[AvailableHost], nodes: int) -> str:
    """Say why the present attempt should save and start again on other hosts; "" when it should
    not.
    """
    working = [host for host in hosts if host.working]
    leaving = [host.node for host in working if host.leaving]
    if leaving:
        return f"{_named(leaving)} must leave"
    out = [host.node for host in working if host.left_out or host.spoiled]
    waiting = [host.node for host in hosts if host.fit and not host.working and not host.idle]
    if out and any(host.fit for host in hosts):
        return f"{_named(out)} is left out"
    room = max(0, nodes - len(working) - sum(host.idle for host in hosts))
    if waiting[:room]:
        return f"{_named(waiting[:room])} came"
    return ""


def majority(nodes: int) -> int:
    """Return the fewest hosts that a run begins with where more are known to be on their way."""
    return nodes // 2 + 1


def enough_hosts(
    hosts: Sequence[AvailableHost], nodes: int, waited_s: float, wait_s: float, least: int = 1
) -> bool:
    """Tell whether to begin now: with all hosts that were asked for, or after the wait with
    those that are there. Fewer than `least` are not enough; hosts in quarantine count here.
    """
    fit, there = sum(host.fit for host in hosts), sum(not host.leaving for host in hosts)
    return fit >= nodes or (fit > 0 and there >= least and waited_s >= wait_s)


def _named(nodes: Sequence[str]) -> str:
    return " and ".join([", ".join(nodes[:-1]), nodes[-1]]) if nodes[1:] else nodes[0]
