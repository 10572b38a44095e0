"""The outcome of many lives: ledgers, times, money and energy, each as a distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.cost.cost import J_PER_KWH, Bill, bill, price_of
from penstock.plan.life.causes import CAUSES
from penstock.plan.life.life import DAY_S
from penstock.plan.plan import Plan
from penstock.plan.power import power
from penstock.run.schema.run import Run
from penstock.simulate.calibrate import MeasuredTimes
from penstock.simulate.conditions import Conditions
from penstock.simulate.fleets import FleetModel
from penstock.simulate.recovery import LifeResult

LOST = (Cause.STARTUP, Cause.CHECKPOINT, Cause.DOWN, Cause.REDO)
PLAYED = Provenance("estimated", "the median of simulated lives")


@dataclass(frozen=True)
class Spread:
    """The 5th, 50th and 95th percentile of lives."""

    p5: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Spread":
        low, middle, high = np.percentile(np.asarray(values, float), (5, 50, 95)).tolist()
        return cls(low, middle, high)

    def to_json(self) -> dict[str, float]:
        return {"p5": self.p5, "p50": self.p50, "p95": self.p95}


@dataclass(frozen=True)
class Simulation:
    """Many lives of one run."""

    run: Run
    plan: Plan
    own: Conditions
    model: FleetModel
    lives: list[LifeResult]
    by_s: float | None
    warnings: tuple[str, ...]
    seed: int
    measured: MeasuredTimes | None = None  # in journals of this model on as many ranks

    @cached_property
    def seconds(self) -> np.ndarray:
        """The seconds of an average rank: [lives, causes]. Their sum is the wall clock."""
        return np.array([life.seconds for life in self.lives])

    @cached_property
    def wall_s(self) -> np.ndarray:
        return np.array([life.wall_s for life in self.lives])

    def share(self, *causes: Cause) -> np.ndarray:
        """Return the share of these causes in each life."""
        places = [list(Cause).index(cause) for cause in causes]
        found: np.ndarray = self.seconds[:, places].sum(axis=1) / self.wall_s
        return found

    @property
    def effective(self) -> Spread:
        return Spread.of(1 - self.share(*LOST))

    @property
    def useful(self) -> Spread:
        return Spread.of(self.share(Cause.COMPUTE))

    @property
    def days(self) -> Spread:
        return Spread.of(self.wall_s / DAY_S)

    @property
    def paused(self) -> Spread:
        """Return the seconds of pauses in dear hours."""
        return Spread.of([life.paused_s for life in self.lives])

    @property
    def fewer(self) -> Spread:
        """Return the seconds at work on some of the accelerators, for want of power."""
        return Spread.of([life.fewer_s for life in self.lives])

    @cached_property
    def counts(self) -> np.ndarray:
        """Interruptions: [lives, causes of failures]."""
        return np.array([[life.interruptions.get(c, 0) for c in CAUSES] for life in self.lives])

    @property
    def interruptions(self) -> Spread:
        return Spread.of(self.counts.sum(axis=1))

    def interruptions_by_cause(self) -> dict[str, Spread]:
        found = {c: self.counts[:, i] for i, c in enumerate(CAUSES)}
        return {c: Spread.of(n) for c, n in found.items() if n.any()}

    def cost_s(self) -> dict[str, Spread]:
        """Return the wall seconds that each cause of failures took, most first."""
        found = {c: [life.cost_s.get(c, 0.0) for life in self.lives] for c in CAUSES}
        spreads = {c: Spread.of(s) for c, s in found.items() if any(s)}
        return dict(sorted(spreads.items(), key=lambda item: -item[1].p50))

    @cached_property
    def middle(self) -> int:
        """The life in the middle: by time to finish, or by the share that was effective."""
        order = np.lexsort((-self.share(Cause.COMPUTE), self.wall_s))
        return int(order[len(order) // 2])

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the life in the middle, with joules, USD and carbon where known."""
        return self._bill.ledger

    @cached_property
    def _bill(self) -> Bill:
        seconds = self.seconds[self.middle] * self.own.ranks
        ledger = Ledger(
            dict(zip(Cause, np.maximum(seconds, 0.0).tolist(), strict=True)),
            provenance={"seconds": PLAYED},
        )
        draw = power.power_draw(
            self.plan.job.machine, self.plan.step, self.plan.job.machine.cooling
        )
        if draw:
            off = self.own.hours is not None and not self.own.hours.terms.paused_w
            off_s = self.lives[self.middle].paused_s * self.own.ranks if off else 0.0
            ledger = power.with_joules(ledger, draw, off_s)
        return bill(self.run, self.plan.job.machine, ledger)

    @cached_property
    def paid_h(self) -> np.ndarray:
        """Return the accelerator-hours of each life that are paid for: those that are there, spares
        too.
        """
        spares = self.own.spares * self.own.per_node
        absent_s = np.array([life.withdrawn_node_s for life in self.lives]) * self.own.per_node
        hours: np.ndarray = (self.wall_s * (self.own.ranks + spares) - absent_s) / 3600
        return hours

    @property
    def usd(self) -> Spread | None:
        """Return the money of the lives; None without a price."""
        price = price_of(self.run, self.plan.job.machine)
        if price is None:
            return None
        usd = self.paid_h * price.usd
        if price.usd_per_kwh is not None and self.kwh is not None:
            usd = usd + self.kwh * price.usd_per_kwh
        return Spread.of(usd)

    @property
    def energy_kwh(self) -> Spread | None:
        """Return the energy of working nodes, with cooling where the PUE is known."""
        return None if self.kwh is None else Spread.of(self.kwh)

    @cached_property
    def kwh(self) -> np.ndarray | None:
        """Return the same of each life."""
        machine = self.plan.job.machine
        draw = power.power_draw(machine, self.plan.step, machine.cooling)
        if draw is None:
            return None
        watts = np.array([draw.by_cause[cause] for cause in Cause])
        joules: np.ndarray = self.seconds @ watts * self.own.ranks * (machine.pue or 1.0)
        if self.own.hours and not self.own.hours.terms.paused_w:  # they are off in a pause
            off_s = np.array([life.paused_s for life in self.lives])
            off_w = draw.by_cause[Cause.DOWN] * self.own.ranks * (machine.pue or 1.0)
            joules = joules - off_s * off_w
        return joules / J_PER_KWH

    @property
    def in_time(self) -> float | None:
        """Return the share of lives that finish by the date that was asked for."""
        if self.by_s is None:
            return None
        done = [life.finished and life.wall_s <= self.by_s for life in self.lives]
        return sum(done) / len(done)

    def ledger_shares(self) -> dict[str, Spread]:
        """Return the share of every cause, as a distribution."""
        return {str(c): Spread.of(self.share(c)) for c in Cause if self.share(c).any()}

    def to_json(self) -> dict[str, Any]:
        own, usd, energy = self.own, self.usd, self.energy_kwh
        done = Spread.of([life.steps for life in self.lives])
        each = Spread.of([life.rates.node * 1000 * DAY_S for life in self.lives])
        return {
            "run": self.run.name,
            "machine": self.plan.job.machine.name,
            "accelerators": own.ranks,
            "nodes": own.nodes,
            "spares": own.spares,
            "sites": own.sites,
            "mode": "live" if own.live else "restart",
            "layout": self.plan.job.layout.to_json(),
            "lives": len(self.lives),
            "seed": self.seed,
            "finished": sum(life.finished for life in self.lives),
            "interruptions": {
                **self.interruptions.to_json(),
                "by_cause": {c: s.to_json() for c, s in self.interruptions_by_cause().items()},
            },
            "effective": self.effective.to_json(),
            "useful": self.useful.to_json(),
            "days": self.days.to_json(),
            "steps": {**done.to_json(), "asked": None if own.steps == inf else own.steps},
            "usd": usd and usd.to_json(),
            "energy_kwh": energy and energy.to_json(),
            "in_time": self.in_time,
            **({"paused_s": self.paused.to_json()} if own.hours else {}),
            **({"fewer_s": self.fewer.to_json()} if own.hours else {}),
            "lost_days": {
                c: {k: v / DAY_S for k, v in s.to_json().items()} for c, s in self.cost_s().items()
            },
            "ledger": self.ledger.to_json(),
            "ledger_shares": {c: s.to_json() for c, s in self.ledger_shares().items()},
            "gave_up": Spread.of([life.gave_up for life in self.lives]).to_json(),
            "fewest_spares": Spread.of([life.fewest_spares for life in self.lives]).to_json(),
            "quarantined": Spread.of([life.quarantined for life in self.lives]).to_json(),
            "mtti_h": Spread.of(
                self.wall_s / 3600 / np.maximum(self.counts.sum(axis=1), 1)
            ).to_json(),
            "failures_per_1000_node_days": {**each.to_json(), "source": self.model.source},
            "checkpoint_interval_s": own.interval_s,
            "startup_s": own.startup_s,
            "step_s": own.step_s,
            "measured": self.measured and self.measured.to_json(),
            "planned": {
                "effective": self.plan.life.effective,
                "days": self.plan.life.days,
                "interruptions": self.plan.life.interruptions,
            },
            "warnings": list(self.warnings),
        }
