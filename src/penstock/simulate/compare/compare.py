"""Clusters compared for one run: which one to take, and what would change that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from penstock.catalog import prices
from penstock.plan.cost.break_even import BreakEven, break_even
from penstock.run.schema.run import Run
from penstock.simulate import given
from penstock.simulate.compare.asked import Asked
from penstock.simulate.compare.candidates import Candidate, candidates
from penstock.simulate.compare.flips import Flip, flips
from penstock.simulate.compare.lived import DAY_S, Lived, live
from penstock.simulate.compare.outcome import Outcome, date_of, outcome, owned_of
from penstock.simulate.simulate import Question


@dataclass(frozen=True)
class OwnedBreakEven:
    """When owning one of the clusters pays, against one way of renting."""

    outcome: Outcome
    against: BreakEven

    def date(self, start: datetime) -> str | None:
        """Return the day on which the rent saved has paid for the purchase."""
        if self.against.years is None:
            return None
        return date_of(start, self.outcome.begin_s + self.against.years * 365.25 * DAY_S)


@dataclass(frozen=True)
class ClusterComparison:
    """All clusters, best first, and those that cannot hold the run."""

    run: Run
    asked: Asked
    outcomes: tuple[Outcome, ...]  # best first
    left_out: tuple[tuple[str, str], ...]  # cluster, reason

    @property
    def best(self) -> Outcome | None:
        return self.outcomes[0] if self.outcomes else None

    @cached_property
    def pareto(self) -> tuple[Outcome, ...]:
        """Those that no other one beats in both days and USD, fastest first."""
        known = [one for one in self.outcomes if one.usd is not None]
        known.sort(key=lambda one: (one.days.p50, _usd(one)))
        found: list[Outcome] = []
        for one in known:
            if not found or _usd(one) < _usd(found[-1]):
                found.append(one)
        return tuple(found)

    @cached_property
    def flips(self) -> tuple[Flip, ...]:
        return flips(self.outcomes) if self.outcomes else ()

    @cached_property
    def break_evens(self) -> tuple[OwnedBreakEven, ...]:
        """Every owned cluster against renting the same accelerators."""
        found = []
        for one in self.outcomes:
            own = owned_of(one.lived)
            if own is None:
                continue
            for usd, words in self._rents(one):
                found.append(OwnedBreakEven(one, break_even(own, usd, words)))
        return tuple(found)

    def _rents(self, owned: Outcome) -> list[tuple[float, str]]:
        """Return what the accelerators of an owned cluster cost to rent: as compared, and as the
        catalog knows it.
        """
        name = owned.lived.plan.job.machine.accelerator
        found = [
            (one.lived.hourly.usd, one.label)
            for one in self.outcomes
            if one.lived.plan.job.machine.accelerator == name
            and one.lived.candidate.term in ("on-demand", "reserved")
            and one.lived.hourly is not None
        ]
        row = next(
            (row for row in prices.all() if (row.accelerator, row.term) == (name, "on-demand")),
            None,
        )
        if row is not None:
            found.append((row.usd_per_hour, f"catalog, {row.term}, {row.as_of}"))
        return list({usd: (usd, words) for usd, words in reversed(found)}.values())[::-1]

    def to_json(self) -> dict[str, Any]:
        asked, best = self.asked, self.best
        on_line = {one.label for one in self.pareto}
        rows = [
            one.to_json(asked.start) | {"pareto": one.label in on_line} for one in self.outcomes
        ]
        return {
            "run": self.run.name,
            "start": date_of(asked.start, 0.0),
            "deadline_days": None if asked.deadline_s is None else asked.deadline_s / DAY_S,
            "tokens": best.lived.tokens if best else None,
            "lives": asked.lives,
            "seed": asked.seed,
            "choice": best and best.label,
            "clusters": rows,
            "left_out": [
                {"cluster": name, "fits": False, "why": why} for name, why in self.left_out
            ],
            "flips": [flip.to_json() for flip in self.flips],
            "break_even": [
                {
                    "cluster": one.outcome.label,
                    **one.against.to_json(),
                    "date": one.date(asked.start),
                }
                for one in self.break_evens
            ],
        }


def compare(
    run: Run,
    names: Sequence[str],
    asked: Asked,
    failures: Sequence[str] | Mapping[str, Any] = (),
    progress: Callable[[str], None] = lambda what: None,
) -> ClusterComparison:
    """Compare clusters for a run; one that cannot hold it is kept with its reason."""
    found: list[Outcome] = []
    left_out: list[tuple[str, str]] = []
    question = Question(asked.lives, asked.seed)
    for one in candidates(run, names):
        progress(f"living on {one.label}")
        lived = live(_with_failures(one, failures), question)
        result = outcome(lived, asked.deadline_s) if isinstance(lived, Lived) else lived
        if isinstance(result, Outcome):
            found.append(result)
        else:
            left_out.append((one.label, result))
    return ClusterComparison(run, asked, tuple(sorted(found, key=rank_key)), tuple(left_out))


def _with_failures(one: Candidate, failures: Sequence[str] | Mapping[str, Any]) -> Candidate:
    changed = given.changed(one.failures, failures)
    return Candidate(one.label, one.run, one.found, changed)


def rank_key(one: Outcome) -> tuple[bool, float, bool, float, float]:
    """Order clusters: in time, else by how late; with a known price, by USD, by days."""
    late_s = 0.0 if one.in_time else one.needs_s
    return (not one.in_time, late_s, one.usd is None, _usd(one), one.days.p50)


def _usd(one: Outcome) -> float:
    return 0.0 if one.usd is None else float(np.median(one.usd))
