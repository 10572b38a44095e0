"""All lives of one cluster on spot, played as `rent` plays offers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.policy.spot import RentTerms
from penstock.simulate.compare.lived import Lived
from penstock.simulate.rent.play import Rented, play, spot_alone
from penstock.simulate.rent.rank import LONGEST_WAIT
from penstock.simulate.rent.spans import Span, drawn, moving


@dataclass(frozen=True)
class OnSpot:
    """All lives of a run on spot."""

    lives: tuple[Rented, ...]

    def of(self, name: str) -> np.ndarray:
        """Return one number of every life."""
        return np.array([getattr(life, name) for life in self.lives])


def on_spot(lived: Lived, by_s: float | None) -> OnSpot:
    """Play all lives on spot; `by_s` counts from the moment when there may be capacity."""
    price = lived.price
    assert price is not None
    dear, cheap = price.usd(price.on_demand_usd_per_hour), price.usd(price.usd_per_hour)
    ratio = dear / cheap if dear and cheap else None
    lives = []
    for number, work_s in enumerate(lived.wall_s.tolist()):
        there = _there(lived, price.regions, number)
        if ratio is None or by_s is None:
            alone = RentTerms(lived.restart_s, 1.0)
            lives.append(play(there, work_s, LONGEST_WAIT * work_s, alone, spot_alone))
        else:
            mixed = RentTerms(lived.restart_s, ratio)
            lives.append(play(there, work_s, by_s, mixed, history=lived.history))
    return OnSpot(tuple(lives))


def _there(lived: Lived, regions: int, number: int) -> Iterator[Span]:
    seed = lived.done.seed
    return moving([drawn(lived.history, seed, number, region) for region in range(regions)])
