"""The comparison of two replicas that computed the same microbatch: pure decisions.

Replica r computes one of its own microbatches and one of the next replica. So n replicas give n
pairs to compare, and each replica is in two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

# Where sums have no fixed order (CUDA without train.deterministic): larger than rounding errors,
# and much smaller than the effect of a wrong bit in an exponent.
LOSS_TOLERANCE = 1e-3
NORM_TOLERANCE = 1e-2
Pair = tuple[int, int]


@dataclass(frozen=True)
class ReplayResult:
    """The result of one rank: its part of the loss, the norm of its gradients, and a sum of all
    their bits.
    """

    loss: float
    norm: float
    bits: int


Results = tuple[ReplayResult, ...]  # of the ranks of a replica


def same(one: Results, other: Results, exact: bool) -> bool:
    if exact:
        return all(a.bits == b.bits for a, b in zip(one, other, strict=True))
    return all(
        isclose(a.loss, b.loss, rel_tol=LOSS_TOLERANCE)
        and isclose(a.norm, b.norm, rel_tol=NORM_TOLERANCE)
        for a, b in zip(one, other, strict=True)
    )


def differing(own: Sequence[Results], of_next: Sequence[Results], exact: bool) -> list[Pair]:
    """Return the pairs (r, the replica before it) that disagree on r's microbatch."""
    count = len(own)
    before = [(r - 1) % count for r in range(count)]
    return [(r, before[r]) for r in range(count) if not same(own[r], of_next[before[r]], exact)]


def at_fault(
    pairs: Sequence[Pair], own: Sequence[Results], again: Sequence[Results], exact: bool
) -> list[int]:
    """Return the replicas that do not repeat themselves (`again`); if all do, the one in every pair
    that differs.

    With two replicas it names both: no more can be said.
    """
    unsteady = [r for r in range(len(own)) if not same(own[r], again[r], exact)]
    return unsteady or sorted(set.intersection(*(set(pair) for pair in pairs)))
