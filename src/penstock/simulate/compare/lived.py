"""One cluster that can hold the run: its lives, each as long as the plan's error may make it.

The simulator draws failures. How far the plan of a step is off is drawn beside them, from the range
that holds four of five measured cases; so the chance to miss a date is not that of failures alone.
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from penstock.errors import PenstockError
from penstock.plan.assemble import STEPPING
from penstock.plan.cost.cost import HourlyPrice, price_of
from penstock.plan.plan import Plan
from penstock.plan.power.site import site_limits
from penstock.policy.spot import UNKNOWN, SpotHistory
from penstock.run.clusters.price import PriceSection
from penstock.simulate.compare.candidates import RENTED, Candidate
from penstock.simulate.draws import generator
from penstock.simulate.rent.rank import BOOT_S
from penstock.simulate.result import Simulation
from penstock.simulate.simulate import Question, simulate

DAY_S = 86400.0
_ERRORS = 2**61  # the stream that errors of the plan are drawn from: no life has this number
WITHIN = 0.9  # the upper end of a band; the lower is as far from the other side


@dataclass(frozen=True)
class Lived:
    """A cluster and its lives."""

    candidate: Candidate
    done: Simulation

    @property
    def plan(self) -> Plan:
        return self.done.plan

    @property
    def price(self) -> PriceSection | None:
        return self.candidate.found.machine.price

    @property
    def delivery_s(self) -> float:
        return (self.price.delivery or 0.0) if self.price else 0.0

    @property
    def boot_s(self) -> float:
        """Return how long rented nodes take to be up; they are paid for from then on."""
        return BOOT_S if self.candidate.term in RENTED else 0.0

    @property
    def hourly(self) -> HourlyPrice | None:
        return price_of(self.candidate.run, self.candidate.found.machine)

    @cached_property
    def longer(self) -> np.ndarray:
        """Return how much longer each life is, by the error of the plan."""
        factors = step_factors(self.plan, len(self.done.lives), self.done.seed)
        moving = self.plan.life.ledger.share(*STEPPING) or 0.0
        found: np.ndarray = 1 + (factors - 1) * moving
        return found

    @cached_property
    def wall_s(self) -> np.ndarray:
        found: np.ndarray = self.done.wall_s * self.longer
        return found

    @cached_property
    def paid_h(self) -> np.ndarray:
        """Return the accelerator-hours of machines that are there for the run, spares too."""
        found: np.ndarray = (
            self.done.paid_h * self.longer + self.boot_s / 3600 * self.done.own.ranks
        )
        return found

    @cached_property
    def kwh(self) -> np.ndarray | None:
        return None if self.done.kwh is None else self.done.kwh * self.longer

    @property
    def tokens(self) -> float:
        return self.plan.life.steps * self.plan.step.tokens

    @property
    def restart_s(self) -> float:
        """Return what a return to spot costs: boot, start, load, and work since the last save."""
        own = self.done.own
        return BOOT_S + own.startup_s + own.load_s + own.interval_s / 2

    @property
    def history(self) -> SpotHistory:
        """Return what is known of spot in one region, as a history of one day."""
        assert self.price is not None
        share = UNKNOWN.up_s / (UNKNOWN.up_s + UNKNOWN.down_s)
        per_day = UNKNOWN.taken * DAY_S / (UNKNOWN.up_s + UNKNOWN.down_s)
        if self.price.available is not None:
            share = self.price.available
        if self.price.interruptions_per_day is not None:
            per_day = self.price.interruptions_per_day
        return SpotHistory(share * DAY_S, (1 - share) * DAY_S, per_day)


def live(candidate: Candidate, asked: Question) -> Lived | str:
    """Simulate the run on a cluster; return why it cannot run there."""
    refused = [each.line() for each in site_limits(candidate.found.machine) if not each.fits]
    if refused:
        return "; ".join(refused)
    try:
        done = simulate(candidate.run, asked, candidate.failures, candidate.found)
    except PenstockError as error:
        return str(error).splitlines()[0].partition(". ")[0]  # the rest is advice for one machine
    if done.plan.limits.refused:
        return "; ".join(done.plan.limits.refused)
    return Lived(candidate, done)


def step_factors(plan: Plan, lives: int, seed: int) -> np.ndarray:
    """Draw the true time of a step over the planned one: four of five lie in the plan's range."""
    band = plan.bands["step_s"]
    end = NormalDist().inv_cdf(WITHIN)
    # Evenly spaced quantiles in random order: fifty lives then hold the range and not their luck.
    normal = [NormalDist().inv_cdf((i + 0.5) / lives) / end for i in range(lives)]
    mixed = np.array(normal)[generator(seed, _ERRORS).permutation(lives)]
    found: np.ndarray = np.where(mixed < 0, band.low ** np.abs(mixed), band.high ** np.abs(mixed))
    return found
