"""The mixing formula: which part of a mixture each position reads, and which of its samples.

The order of parts repeats in a cycle. In a cycle every part has a quota of places (its weight,
rounded by largest remainders). The places are spread so evenly that after n places a part has had
its share of n, plus or minus less than one sample. The number of samples of a part before any
position is one division and one table look-up, so a mixture resumes as fast as a single dataset,
and each part goes through its own epochs.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError

MIX = "cycle-1"  # part of the saved state; a different choice of places needs a different name
MAX_PLACES = 1 << 16
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MixCycle:
    """The places of one cycle: place i reads sample `before[i]` of `part[i]` in this cycle."""

    quotas: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    @property
    def places(self) -> int:
        return len(self.part)

    def at(self, positions: npt.ArrayLike) -> tuple[Positions, Positions]:
        """Return (part, number of its samples before this position) for each position."""
        cycles, places = np.divmod(np.asarray(positions, dtype=np.int64), self.places)
        part = self.part[places]
        return part, cycles * self.quotas[part] + self.before[places]

    def counts(self, position: int) -> Positions:
        """Return how many samples of each part come before a position."""
        cycles, places = divmod(position, self.places)
        return cycles * self.quotas + np.bincount(self.part[:places], minlength=len(self.quotas))

    def reach(self, available: Sequence[int]) -> int:
        """Return the largest number of positions that `available` samples of each part allow."""
        return min(self._position_of(part, count) for part, count in enumerate(available))

    def _position_of(self, part: int, number: int) -> int:
        """Return the position of sample `number` (from 0) of a part."""
        cycles, rest = divmod(number, int(self.quotas[part]))
        return cycles * self.places + int(np.flatnonzero(self.part == part)[rest])


def mixing_cycle(weights: Sequence[float]) -> MixCycle:
    """Return the cycle for parts with these weights, which may have any sum."""
    return _cycle(tuple(mixing_quotas(weights)))


def mixing_quotas(weights: Sequence[float]) -> list[int]:
    """Return the places of each part in a cycle.

    Exact if a cycle of at most 65,536 places can be, else the nearest quotas.
    """
    # As the file spells them: 0.1 is a tenth, not the float next to it.
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    places = lcm(*(share.denominator for share in shares))
    if places <= MAX_PLACES:
        return [int(share * places) for share in shares]
    quotas = [int(share * MAX_PLACES) for share in shares]
    rests = [share * MAX_PLACES - quota for share, quota in zip(shares, quotas, strict=True)]
    by_rest = sorted(range(len(shares)), key=lambda part: (-rests[part], part))
    for part in by_rest[: MAX_PLACES - sum(quotas)]:
        quotas[part] += 1
    for part, quota in enumerate(quotas):
        if not quota:
            raise PenstockError(
                f"data.mix: part {part + 1} with weight {weights[part]:g} is "
                f"{float(shares[part]):.2g} of the mixture, less than one sample in "
                f"{MAX_PLACES}; give it more weight or leave it out"
            )
    return quotas


@lru_cache(maxsize=8)
def _cycle(quotas: tuple[int, ...]) -> MixCycle:
    """Assign the places of a cycle.

    Each sample of a part has a first and a last place that keep the part within one sample of its
    share. Serving the sample with the earliest last place first meets all of them (Tijdeman).
    """
    places = sum(quotas)
    part = np.empty(places, dtype=np.int64)
    before = np.empty(places, dtype=np.int64)
    waiting = [(0, which, 0) for which in range(len(quotas))]  # (first place, part, number)
    ready: list[tuple[int, int, int]] = []  # (last place, part, number)
    for place in range(places):
        while waiting and waiting[0][0] <= place:
            _, which, number = heapq.heappop(waiting)
            last = -(-(number + 1) * places // quotas[which])
            heapq.heappush(ready, (last, which, number))
        _, which, number = heapq.heappop(ready)
        part[place], before[place] = which, number
        if number + 1 < quotas[which]:
            heapq.heappush(waiting, ((number + 1) * places // quotas[which], which, number + 1))
    return MixCycle(np.array(quotas, dtype=np.int64), part, before)
