"""The failure rates of published fleets as a distribution: what an unknown fleet may be like.

Published fleets differ by nine times. A life of a run therefore draws a fleet and a factor around
it. A cluster file that states its rates, the name of a fleet, or the journals of this cluster
replace or narrow that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.catalog import failures
from penstock.catalog.failures import FailureRate
from penstock.errors import PenstockError, nearest
from penstock.plan.life.rates import SOFTWARE_SPREAD, WITHIN, FailureRates, software_per_s

PER = 1000 * 86400.0  # seconds in a thousand node-days
TRIED = 4096  # draws from the fleets that journals choose among
UNLIKE = 3.0  # nats that the likeliest of them may lack: twenty times less likely


@dataclass(frozen=True)
class Seen:
    """Counts of failures in the journals of a cluster, and the time that the journals cover."""

    hardware: int
    node_s: float
    software: int
    run_s: float


@dataclass(frozen=True)
class FleetModel:
    """A distribution of rates. A single fleet with no spread is a known cluster."""

    node: tuple[float, ...]  # per second, of one node
    node_spread: float
    software: float  # per second, the middle
    software_spread: float
    source: str
    wide: bool = False  # nothing is known of this fleet
    seen: Seen | None = None

    def draw(self, generator: np.random.Generator, count: int) -> list[FailureRates]:
        """Draw the rates of `count` lives."""
        if self.seen is None:
            return self._prior(generator, count)
        tried, seen = self._prior(generator, TRIED), self.seen
        node = _narrowed([one.node for one in tried], seen.hardware, seen.node_s, generator, count)
        software = [one.software for one in tried]
        software = _narrowed(software, seen.software, seen.run_s, generator, count)
        return [FailureRates(n, s) for n, s in zip(node, software, strict=True)]

    def _prior(self, generator: np.random.Generator, count: int) -> list[FailureRates]:
        fleets = np.array(self.node)[generator.integers(len(self.node), size=count)]
        node = fleets * np.exp(self.node_spread * generator.standard_normal(count))
        spread = np.exp(self.software_spread * generator.standard_normal(count))
        return [
            FailureRates(float(n), float(s))
            for n, s in zip(node, self.software * spread, strict=True)
        ]


def _narrowed(
    tried: Sequence[float], seen: int, time_s: float, generator: np.random.Generator, count: int
) -> list[float]:
    """Draw rates from those that were tried, weighed by the probability of what journals show.

    Where none of them comes near it, this cluster is like no published one, and its journals alone
    decide: rates are then drawn from the gamma distribution of that many events in that time.
    """
    rates = np.array(tried)
    if (rates == rates[0]).all():  # it is stated
        return rates[:count].tolist() if len(rates) >= count else [float(rates[0])] * count
    weight = seen * np.log(rates * time_s) - rates * time_s
    best = seen * np.log(max(seen, 1e-9)) - seen
    if best - weight.max() > UNLIKE:
        own: list[float] = (generator.gamma(seen + 0.5, size=count) / time_s).tolist()
        return own
    weight = np.exp(weight - weight.max())
    found: list[float] = rates[
        generator.choice(len(rates), count, p=weight / weight.sum())
    ].tolist()
    return found


def published(without: Sequence[str] = ()) -> list[FailureRate]:
    """Return the rows of published fleets, less those that are left out by name."""
    rows = failures.measured("per_1000_node_days")
    for name in without:
        fleet_named(name)
    left = [row for row in rows if row.name not in without]
    if not left:
        raise PenstockError(
            f"--without leaves none of the {len(rows)} published fleets; name fewer"
        )
    return left


def fleet_named(name: str) -> FailureRate:
    """Find a published fleet by its name."""
    rows = failures.measured("per_1000_node_days")
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        names = [row.name for row in rows]
        raise PenstockError(
            f"no published fleet is called '{name}'. {nearest(name, names)} There are "
            f"{', '.join(names)} (`penstock catalog failures`)".replace("  ", " ")
        )
    return found


def model(
    node_mtbf_s: float | None = None,
    software_mtbf_s: float | None = None,
    fleet: str | None = None,
    without: Sequence[str] = (),
    seen: Seen | None = None,
) -> FleetModel:
    """Return the distribution of rates: stated ones, one fleet's, or those of all published."""
    software = 1 / software_mtbf_s if software_mtbf_s else software_per_s(without)
    spread = 0.0 if software_mtbf_s else SOFTWARE_SPREAD
    if node_mtbf_s is not None:
        return FleetModel((1 / node_mtbf_s,), 0.0, software, spread, "stated node_mtbf", seen=seen)
    if fleet is not None:
        row = fleet_named(fleet)
        return FleetModel((row.value / PER,), 0.0, software, spread, f"{fleet}: {row.source}")
    rows = published(without)
    rates = tuple(row.value / PER for row in rows)
    low, high = min(row.value for row in rows), max(row.value for row in rows)
    said = f"{len(rows)} published fleets, {low:g} to {high:g} failures per 1000 node-days"
    if seen is not None:
        said = f"this cluster's journals ({seen.hardware + seen.software} failures), else {said}"
    return FleetModel(rates, WITHIN, software, spread, said, wide=seen is None, seen=seen)
