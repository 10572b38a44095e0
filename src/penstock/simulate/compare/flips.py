"""Values that flip the choice: the price, utilisation or date from which another cluster wins.

Every lever is a number of one cluster with all else kept; USD rise or fall with it steadily, so the
point where the choice changes is found by halving.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from penstock.run.clusters.price import Amount, PriceSection
from penstock.simulate.compare.lived import DAY_S, Lived
from penstock.simulate.compare.outcome import Outcome, outcome, owned_of, usd_of

HALVINGS = 60
FARTHEST = 20.0  # times as much or as little: beyond it a price is another market
LEAST_USED, MOST_USED = 0.01, 1.0
DEAREST_KWH = 2.0


@dataclass(frozen=True)
class Flip:
    """One change from which on another cluster is the choice."""

    cluster: str  # whose number it is
    what: str
    unit: str
    now: float
    at: float
    rises: bool  # flips above `at`, else below
    choice: str  # what is then the choice

    @property
    def words(self) -> str:
        """Return the flip in one sentence."""
        if self.unit == "days":
            side = "more" if self.rises else "less"
            return f"with {side} than {_number(self.at)} days until the date, take {self.choice}"
        side = "above" if self.rises else "below"
        return (
            f"{self.what} of {self.cluster} {side} {self._shown(self.at)} "
            f"(now {self._shown(self.now)}): take {self.choice}"
        )

    def _shown(self, value: float) -> str:
        if self.unit == "share":
            return f"{100 * value:.3g} %"
        return f"{_number(value)} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "what": self.what,
            "unit": self.unit,
            "now": self.now,
            "at": self.at,
            "when": "above" if self.rises else "below",
            "choice": self.choice,
            "words": self.words,
        }


@dataclass(frozen=True)
class Lever:
    """A number of one cluster, and what the run costs there at another value of it."""

    what: str
    unit: str
    now: float
    low: float
    high: float
    usd_at: Callable[[float], float]

    def crosses(self, usd: float) -> float | None:
        """Return the value at which the run costs so much; None within no reason."""
        low, high = self.low, self.high
        first, last = self.usd_at(low) - usd, self.usd_at(high) - usd
        if not isfinite(first) or not isfinite(last) or (first > 0) == (last > 0):
            return None
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if (self.usd_at(middle) - usd > 0) == (first > 0):
                low = middle
            else:
                high = middle
        return (low + high) / 2


def flips(outcomes: Sequence[Outcome]) -> tuple[Flip, ...]:
    """Return the changes that flip the choice among clusters in their order, nearest first."""
    best = outcomes[0]
    usd = _median(best)
    found = [*_dates(outcomes)]
    if usd is not None and best.in_time:
        rivals = [one for one in outcomes[1:] if one.in_time and _median(one) is not None]
        if rivals:
            found += _worse(best, rivals[0])
        for rival in rivals:
            found += _better(rival, best, usd)
    return tuple(sorted(found, key=_far))


def _far(flip: Flip) -> float:
    """Return how far away a flip is, as a factor."""
    if not flip.now or not flip.at:
        return 1.0
    return max(flip.at / flip.now, flip.now / flip.at) - 1


def _worse(best: Outcome, second: Outcome) -> Iterator[Flip]:
    """Yield what would make the choice dearer than the next one."""
    usd = _median(second)
    assert usd is not None
    for lever in levers(best):
        at = lever.crosses(usd)
        if at is not None:
            yield Flip(
                best.label, lever.what, lever.unit, lever.now, at, at > lever.now, second.label
            )


def _better(rival: Outcome, best: Outcome, usd: float) -> Iterator[Flip]:
    """Yield what would make another one cheaper than the choice."""
    for lever in levers(rival):
        at = lever.crosses(usd)
        if at is not None:
            yield Flip(
                rival.label, lever.what, lever.unit, lever.now, at, at > lever.now, rival.label
            )


def levers(one: Outcome) -> Iterator[Lever]:
    """Yield the numbers that decide about the money of a cluster."""
    lived, spot = one.lived, one.spot
    price, hourly = lived.price, lived.hourly
    if hourly is None:
        return
    own = owned_of(lived)
    if own is not None and price is not None:
        kwh_usd = hourly.usd_per_kwh or 0.0
        yield Lever(
            "electricity", "USD/kWh", kwh_usd, 0.0, DEAREST_KWH, partial(_by_electricity, lived)
        )
        yield Lever(
            "utilisation",
            "share",
            own.utilisation,
            LEAST_USED,
            MOST_USED,
            partial(_by_utilisation, lived, price),
        )
        node_usd = own.node_usd
        yield Lever(
            "the purchase of a node",
            "USD",
            node_usd,
            node_usd / FARTHEST,
            node_usd * FARTHEST,
            partial(_by_purchase, lived, price),
        )
        return
    if price is not None and price.term == "reserved":
        yield Lever(
            "utilisation",
            "share",
            price.utilisation or 1.0,
            LEAST_USED,
            MOST_USED,
            lambda used: _of(usd_of(lived, spot, usd_per_hour=_full(hourly.usd, price) / used)),
        )
    if hourly.usd:
        full = _full(hourly.usd, price)
        each = 1.0 if price is None or price.utilisation is None else price.utilisation
        what = "the price"
        if one.mixed:
            what = "the spot price, with on-demand in proportion,"
        yield Lever(
            what,
            "USD/h",
            full,
            full / FARTHEST,
            full * FARTHEST,
            lambda usd: _of(usd_of(lived, spot, usd_per_hour=usd / each)),
        )


def _full(usd: float, price: PriceSection | None) -> float:
    """Return the price of an hour, used or not."""
    return usd if price is None or price.utilisation is None else usd * price.utilisation


def _by_electricity(lived: Lived, usd_per_kwh: float) -> float:
    return _of(usd_of(lived, None, usd_per_kwh=usd_per_kwh))


def _by_utilisation(lived: Lived, price: PriceSection, used: float) -> float:
    return _of(usd_of(lived, None, price.model_copy(update={"utilisation": used})))


def _by_purchase(lived: Lived, price: PriceSection, usd: float) -> float:
    owned = price.owned.model_copy(update={"purchase": Amount(usd)})
    return _of(usd_of(lived, None, price.model_copy(update={"owned": owned})))


def _dates(outcomes: Sequence[Outcome]) -> Iterator[Flip]:
    """Yield the dates from which another cluster is the choice."""
    best = outcomes[0]
    now_s = best.deadline_s
    if best.in_time:
        sooner_s = best.needs_s
        others = [_at(one, sooner_s) for one in outcomes[1:] if one.needs_s < sooner_s]
        priced = [one for one in others if one is not None and one.in_time]
        if priced:
            then = min(priced, key=_key)
            yield _date(best, now_s, sooner_s, False, then.label)
    if now_s is None:
        return
    usd = _median(best)
    later = [
        one
        for one in outcomes[1:]
        if one.needs_s > now_s
        and not one.in_time
        and (not best.in_time or _cheaper(_at(one, one.needs_s), usd))
    ]
    for one in sorted(later, key=lambda one: one.needs_s)[:1]:
        yield _date(best, now_s, one.needs_s, True, one.label)


def _date(best: Outcome, now_s: float | None, at_s: float, rises: bool, choice: str) -> Flip:
    now = (at_s if now_s is None else now_s) / DAY_S
    return Flip(best.label, "the date", "days", now, at_s / DAY_S, rises, choice)


def _at(one: Outcome, deadline_s: float) -> Outcome | None:
    found = outcome(one.lived, deadline_s)
    return found if isinstance(found, Outcome) else None


def _cheaper(one: Outcome | None, usd: float | None) -> bool:
    found = None if one is None else _median(one)
    return found is not None and usd is not None and found < usd


def _key(one: Outcome) -> tuple[bool, float]:
    found = _median(one)
    return (found is None, found or 0.0)


def _median(one: Outcome) -> float | None:
    return None if one.usd is None else _of(one.usd)


def _of(usd: np.ndarray | None) -> float:
    assert usd is not None
    return float(np.median(usd))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
