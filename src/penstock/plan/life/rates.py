"""How often things fail: nodes by the fleets that published it, software by the runs that did.

Published fleets differ by nine times. The planner takes their median and gives the range that four
of five lie in; the simulator draws from all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, expm1, log
from statistics import NormalDist, median

from penstock.catalog import failures
from penstock.plan.hardware.machine import Machine
from penstock.policy import checkpoint as policy

# How far the rate of one fleet moves from one period to the next (σ of its logarithm): estimated.
WITHIN = 0.3
# Software failures of a run a day: the spread (σ of the logarithm) of the three published figures.
SOFTWARE_SPREAD = 0.6
# A run on few nodes meets fewer of its bugs. Jobs of 8 GPUs failed once in 47.7 days and jobs of
# 1,024 once in 7.9 h (arXiv 2410.21680); above some hundred nodes software does not scale.
SOFTWARE_NODES = 64.0
DAY_S = 86400.0
ACCELERATORS_OF_A_PUBLISHED_NODE = 8
LOW, HIGH = 0.1, 0.9  # four of five fleets lie between


@dataclass(frozen=True)
class FailureRates:
    """Failures per second of one node, and of the software of a run at full size."""

    node: float
    software: float


def software_per_s(without: Sequence[str] = ()) -> float:
    """Return the middle of the published software failures of a run."""
    words = {name.split(" ")[0] for name in without}
    rows = failures.measured("software_per_day")
    kept = [row for row in rows if row.name.split(" ")[0] not in words] or rows
    return exp(sum(log(row.value) for row in kept) / len(kept)) / DAY_S


def software_at(rate: float, nodes: int) -> float:
    """Return the software failures per second of a run on so many nodes."""
    return -rate * expm1(-nodes / SOFTWARE_NODES)


def node_mtbf_s(machine: Machine) -> tuple[float, str]:
    """Return the time between failures of one node, and its source."""
    if machine.node_mtbf_s:
        return machine.node_mtbf_s, machine.sources.get("node_mtbf_s", "given")
    where = "median of the published rates, `penstock catalog failures`"
    if machine.kind == "cpu":
        return policy.node_mtbf_s(), where
    # Published nodes have eight accelerators, which are most of what breaks: a rack of 72 fails
    # nine times as often, and half a node half as often.
    each = policy.node_mtbf_s() * ACCELERATORS_OF_A_PUBLISHED_NODE
    return each / machine.per_node, f"{where}, by accelerators"


def usual_rates(machine: Machine) -> FailureRates:
    """Return the rates that a plan counts with: stated ones, else the middle of the published."""
    stated_s = machine.software_mtbf_s
    return FailureRates(1 / node_mtbf_s(machine)[0], 1 / stated_s if stated_s else software_per_s())


def range_of_rates(machine: Machine) -> tuple[tuple[FailureRates, FailureRates], ...]:
    """Return pairs of a low and a high rate, one pair for each rate that nobody has stated."""
    usual, pairs = usual_rates(machine), []
    if not machine.node_mtbf_s:
        low, high = (usual.node * fleet_factor(q) for q in (LOW, HIGH))
        pairs.append((FailureRates(low, usual.software), FailureRates(high, usual.software)))
    if not machine.software_mtbf_s:
        spread = exp(SOFTWARE_SPREAD * NormalDist().inv_cdf(HIGH))
        pairs.append(
            (
                FailureRates(usual.node, usual.software / spread),
                FailureRates(usual.node, usual.software * spread),
            )
        )
    return tuple(pairs)


@cache
def fleet_factor(quantile: float) -> float:
    """Return the rate that this share of fleets stays below, over the median of the published."""
    rates = [row.value for row in failures.measured("per_1000_node_days")]
    low, high = log(min(rates)) - 5 * WITHIN, log(max(rates)) + 5 * WITHIN
    usual = NormalDist(0.0, WITHIN)
    for _ in range(60):  # halves the range each time
        middle = (low + high) / 2
        below = sum(usual.cdf(middle - log(rate)) for rate in rates) / len(rates)
        low, high = (middle, high) if below < quantile else (low, middle)
    return exp(low) / median(rates)
