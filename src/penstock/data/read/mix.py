"""Which part of a mixture each position reads, and which of that part's samples: a formula.

The order of parts repeats in a cycle. In it every part has its quota of places (its weight by
largest remainders), spread so evenly that after n places a part has had its share of n give or take
less than one sample. How many samples of a part stand before any position is one division and one
look into a table, so that a mixture resumes as fast as a single dataset, and each part goes through
epochs of its own.
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

MIX = "cycle-1"  # stands in the saved state; another choice of places needs another name
MOST_PLACES = 1 << 16
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cycle:
    """The places of one cycle. `part[i]` reads its `before[i]`-th sample of the cycle."""

    quotas: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    @property
    def places(self) -> int:
        return len(self.part)

    def at(self, positions: npt.ArrayLike) -> tuple[Positions, Positions]:
        """(part, how many of its samples stand before) for each position."""
        cycles, places = np.divmod(np.asarray(positions, dtype=np.int64), self.places)
        part = self.part[places]
        return part, cycles * self.quotas[part] + self.before[places]

    def counts(self, position: int) -> Positions:
        """How many samples of each part stand before a position."""
        cycles, places = divmod(position, self.places)
        return cycles * self.quotas + np.bincount(self.part[:places], minlength=len(self.quotas))

    def reach(self, available: Sequence[int]) -> int:
        """The most positions that need no more than `available` samples of each part."""
        return min(self._position_of(part, count) for part, count in enumerate(available))

    def _position_of(self, part: int, number: int) -> int:
        """Where the sample `number` (from 0) of a part stands."""
        cycles, rest = divmod(number, int(self.quotas[part]))
        return cycles * self.places + int(np.flatnonzero(self.part == part)[rest])


def cycle_of(weights: Sequence[float]) -> Cycle:
    """The cycle for parts with these weights, which need not add up to anything."""
    return _cycle(tuple(quotas_of(weights)))


def quotas_of(weights: Sequence[float]) -> list[int]:
    """Places of each part in a cycle: exact where a cycle of 65,536 can be, else the nearest."""
    # As the file spells them: 0.1 is a tenth, not the float next to it.
    given = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(given) for weight in given]
    places = lcm(*(share.denominator for share in shares))
    if places <= MOST_PLACES:
        return [int(share * places) for share in shares]
    quotas = [int(share * MOST_PLACES) for share in shares]
    rests = [share * MOST_PLACES - quota for share, quota in zip(shares, quotas, strict=True)]
    by_rest = sorted(range(len(shares)), key=lambda part: (-rests[part], part))
    for part in by_rest[: MOST_PLACES - sum(quotas)]:
        quotas[part] += 1
    for part, quota in enumerate(quotas):
        if not quota:
            raise PenstockError(
                f"data.mix: part {part + 1} with weight {weights[part]:g} is "
                f"{float(shares[part]):.2g} of the mixture, less than one sample in "
                f"{MOST_PLACES}; give it more weight or leave it out"
            )
    return quotas


@lru_cache(maxsize=8)
def _cycle(quotas: tuple[int, ...]) -> Cycle:
    """Each sample of a part has a first and a last place that keep the part within one sample of
    its share; serving the earliest last place first is known to meet all of them (Tijdeman)."""
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
    return Cycle(np.array(quotas, dtype=np.int64), part, before)
