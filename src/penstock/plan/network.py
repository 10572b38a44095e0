"""Collectives over the tiers of a machine: bandwidth by message size, latency by hops.

A group of ranks `stride` apart has `near` members inside the scale-up domain and reaches the others
over the next tier. Rings inside and outside run at the same time on different links, so the slower
one sets the pace.
"""

from dataclasses import dataclass
from functools import lru_cache

from penstock.plan.machine import Machine, Tier

# Half of the bandwidth is reached at this message size per rank and hop: fits the catalog's measured
# curves (NVLink 3: 18 GB/s at 1 MiB and 172 at 64 MiB of 235; EFA v4: 64 at 16 MiB, 229 at 256 MiB).
HALF_BYTES = {"scale-up": 1.0e6, "scale-out": 2.0e6}


@dataclass(frozen=True)
class Group:
    """Ranks that talk: how many, how many of them in one scale-up domain, over which tiers."""

    ways: int
    near: int
    inner: Tier
    outer: Tier

    @property
    def far(self) -> int:
        return -(-self.ways // self.near)


@lru_cache(maxsize=65536)
def _group(tiers: tuple[Tier, ...], ways: int, stride: int) -> Group:
    inner, outer = tiers[0], tiers[-1]
    for tier in tiers:
        if ways * stride <= tier.size:
            outer = tier
            break
    near = max(1, min(ways, inner.size // stride))
    while ways % near:
        near -= 1
    return Group(ways, near, inner, outer)


def group(machine: Machine, ways: int, stride: int = 1) -> Group:
    return _group(machine.tiers, ways, stride)


def _leg(size_bytes: float, ways: int, tier: Tier) -> float:
    """A ring over one tier in which each rank sends `size_bytes` × (ways − 1) / ways in all."""
    if ways <= 1:
        return 0.0
    sent = size_bytes * (ways - 1) / ways
    half = HALF_BYTES.get(tier.name, HALF_BYTES["scale-out"]) / tier.bytes_per_s
    return sent / tier.bytes_per_s + half + (ways - 1) * tier.hop_s / 4


def gather_s(g: Group, size_bytes: float) -> float:
    """All-gather to, or reduce-scatter of, `size_bytes` on every rank."""
    if g.ways <= 1:
        return 0.0
    inside = _leg(size_bytes, g.near, g.inner)
    if g.far <= 1:
        return inside
    outside = _leg(size_bytes / g.near, g.far, g.outer)
    return max(inside, outside) + 0.25 * min(inside, outside)


def all_reduce_s(g: Group, size_bytes: float) -> float:
    return 2 * gather_s(g, size_bytes)


def all_to_all_s(g: Group, size_bytes: float, share: float, copies: int = 1) -> float:
    """Each rank sends `size_bytes`, spread evenly over the group.

    `copies` of one token may go to the same far domain; a dispatcher that knows sends one there.
    """
    if g.ways <= 1:
        return 0.0
    inward = size_bytes * (g.ways - 1) / g.ways
    near_s = inward / (g.inner.bytes_per_s * share) if g.near > 1 else 0.0
    far_s = 0.0
    if g.far > 1:
        visited = (g.far - 1) * (1 - (1 - 1 / g.far) ** copies) / copies
        far_s = size_bytes * visited / g.outer.bytes_per_s
    return max(near_s, far_s) + g.inner.hop_s + (g.outer.hop_s if g.far > 1 else 0.0)


def send_s(machine: Machine, size_bytes: float, stride: int) -> float:
    """One message to the rank `stride` away, as between pipeline stages."""
    tier = next((t for t in machine.tiers if stride < t.size), machine.tiers[-1])
    return size_bytes / tier.bytes_per_s + tier.hop_s
