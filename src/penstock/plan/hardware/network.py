"""Collectives over the tiers of a machine: bandwidth by message size, latency by hops.

A group crosses as many tiers as its ranks are apart. On each it is a ring over the domains of the
tier below, in which every rank carries its own share, so the wider tiers carry less. The rings run
at the same time on different links: the slowest sets the pace, and the others show a little.
"""

from dataclasses import dataclass
from functools import lru_cache

from penstock.plan.hardware.machine import INSIDE, Machine, NetworkTier

# Half of the bandwidth is reached at this message size. From the curves of the catalog: NVLink 3
# has 18 of 235 GB/s at 1 MiB and 172 at 64; EFA v4 has 64 of 382 at 16 MiB and 229 at 256.
HALF_BYTES = {"scale-up": 1.0e6}
HALF_BYTES_OUTSIDE = 2.0e6
HALF_S = 5e-3  # at most: over slow links it is not the size of a message that costs time
# Share of the faster tiers' time that a collective adds to that of the slowest tier.
UNHIDDEN = 0.25
# Large rings are cut into trees and chunks: a hop in four is waited for.
HOPS_SHOWN = 0.25


@dataclass(frozen=True)
class CommRing:
    """One tier of a group: a ring over `ways` domains, each of `below` ranks of the group."""

    ways: int
    below: int
    tier: NetworkTier


@dataclass(frozen=True)
class CommGroup:
    """Ranks that communicate, and the tiers between them from the nearest to the farthest."""

    ways: int
    legs: tuple[CommRing, ...]


@dataclass(frozen=True)
class Dispatch:
    """The copies of one token that an exchange carries: to a domain with several of its experts
    goes one.
    """

    copies: int = 1
    groups: int = 0  # of experts; a token chooses from `chosen` of them. 0: from all
    chosen: int = 0

    def domains(self, count: int) -> float:
        """Return how many of `count` equal domains one token goes to, on average."""
        reached = count * (1 - (1 - 1 / count) ** self.copies)
        if self.groups:
            reached = min(reached, self.chosen * max(1.0, count / self.groups))
        return reached


@lru_cache(maxsize=65536)
def _group(tiers: tuple[NetworkTier, ...], ways: int, stride: int) -> CommGroup:
    legs: list[CommRing] = []
    below = 1
    for tier in tiers:
        within = ways if tier is tiers[-1] else max(1, min(ways, tier.size // stride))
        while ways % within or within % below:
            within -= 1
        if within > below:
            legs.append(CommRing(within // below, below, tier))
            below = within
    return CommGroup(ways, tuple(legs))


def group(machine: Machine, ways: int, stride: int = 1) -> CommGroup:
    """Return the group of `ways` ranks, each `stride` after the last."""
    return _group(machine.tiers, ways, stride)


def leaves_node(g: CommGroup) -> bool:
    """Tell whether the group uses a network beyond the node."""
    return bool(g.legs) and g.legs[-1].tier.name not in INSIDE


def gather_s(g: CommGroup, size_bytes: float) -> float:
    """Predict the time of an all-gather to, or a reduce-scatter of, `size_bytes` on every rank."""
    legs = [_ring_s(size_bytes / leg.below, leg) for leg in g.legs]
    slowest = max(legs, default=0.0)
    return slowest + UNHIDDEN * (sum(legs) - slowest)


def _ring_s(size_bytes: float, leg: CommRing) -> float:
    """Predict the time of a ring: each rank sends `size_bytes` × (ways − 1) / ways in all."""
    tier = leg.tier
    sent = size_bytes * (leg.ways - 1) / leg.ways
    half = min(HALF_BYTES.get(tier.name, HALF_BYTES_OUTSIDE), HALF_S * tier.bytes_per_s)
    return (sent + half) / tier.bytes_per_s + _hops(leg.ways) * tier.hop_s


def _hops(ways: int) -> float:
    """Return the hops of a ring that are waited for; at least one."""
    return max(1.0, HOPS_SHOWN * (ways - 1))


def all_reduce_s(g: CommGroup, size_bytes: float) -> float:
    """Predict the time of a reduce-scatter and an all-gather."""
    return 2 * gather_s(g, size_bytes)


def spread_s(g: CommGroup, size_bytes: float) -> float:
    """Predict the time of a ring in which each rank sends its own `size_bytes` to all others.

    Between domains of the farthest tier only the ranks at their edges send, by the share of all.
    """
    far = g.legs[-1]
    sent = (g.ways - 1) * size_bytes
    return sent / (far.tier.bytes_per_s * far.below) + (g.ways - 1) * far.tier.hop_s


def ring_sum_s(g: CommGroup, size_bytes: float) -> float:
    """Predict the time of a sum in one ring over the farthest tier, for large messages."""
    return 2 * spread_s(g, size_bytes / g.ways)


def all_to_all_s(
    g: CommGroup, size_bytes: float, share: float, dispatch: Dispatch | None = None
) -> float:
    """Predict the time of an exchange in which each rank sends `size_bytes` evenly to its group.

    Inside the nearest tier every pair talks and gets `share` of the bandwidth. Copies of one token
    may go to the same far domain; a dispatcher that knows sends one there.
    """
    dispatch = dispatch or Dispatch()
    slowest, latency = 0.0, 0.0
    for leg in g.legs:
        if leg.below == 1:
            sent = size_bytes * (g.ways - 1) / g.ways / share
        else:
            domains = g.ways // leg.below
            # One of the domains is the token's own.
            reached = dispatch.domains(domains) * (domains - 1) / domains
            sent = size_bytes * reached / dispatch.copies
        slowest = max(slowest, sent / leg.tier.bytes_per_s)
        latency += _hops(leg.ways) * leg.tier.hop_s
    return slowest + latency


def send_s(machine: Machine, size_bytes: float, stride: int, ways: int) -> float:
    """Predict the time of one message to the rank `stride` away, over the farthest of the hops
    between `ways` ranks.
    """
    tier = next((t for t in machine.tiers if stride * ways <= t.size), machine.tiers[-1])
    return size_bytes / tier.bytes_per_s + tier.hop_s
