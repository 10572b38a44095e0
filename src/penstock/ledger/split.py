"""Division of a rank's `compute` seconds, by the steps that were traced.

A step record has one number for forward and backward. Inside it a rank may wait for a neighbour of
the pipeline, or in collectives of its replica. Now and then all ranks trace the same step, and a
line `trace` says what was inside; the steps between are divided by the same shares.

In a collective, the least time of any traced peer is `communicate` and the rest of a rank's own
time is `peer_wait`, as everywhere in the ledger.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import StepTraced
from penstock.ledger.journal.read import LineOf
from penstock.ledger.journal.values import LATEST_S, whole

Shares = dict[Cause, float]
UNTRACED: Shares = {Cause.COMPUTE: 1.0}
CELLS = 64  # numbers for the collectives of a step on a line; more are added up with neighbours
MOST_STEPS = 64  # traced steps that are looked at: this is done again for every look at a run
PARTS = ("compute", "copy", "calls", "bubble", "idle")


@dataclass(frozen=True)
class TracedStep:
    """One line `trace`: seconds of one rank in one step."""

    step: int
    rank: int
    peers: range  # that it has collectives with
    stage: range  # ranks that do the same work
    parts: dict[str, float]
    collectives: np.ndarray
    count: int  # of collectives; those of equal counts are the same ones

    @property
    def window_s(self) -> float:
        return sum(self.parts.values()) + float(self.collectives.sum())

    @classmethod
    def of(cls, line: LineOf[StepTraced]) -> "TracedStep | None":
        """Parse a line; None if it is damaged."""
        event = line.event
        split, step = event.split, whole(event.step)
        peers, stage = _ranks(event.peers), _ranks(event.stage)
        if not isinstance(split, dict) or step is None or not line.ranks:
            return None
        parts = _times([split.get(part, 0.0) for part in PARTS])
        collectives = _times(split.get("collectives", []))
        if parts is None or collectives is None:
            return None
        return cls(
            step,
            line.ranks.start,
            peers or line.ranks,
            stage or line.ranks,
            dict(zip(PARTS, parts.tolist(), strict=True)),
            collectives,
            whole(event.count) or len(collectives),
        )


@dataclass(frozen=True)
class ComputeSplits:
    """The shares of one attempt."""

    by_rank: dict[int, Shares]
    by_stage: dict[range, Shares]  # the mean of its traced ranks, for the others

    @classmethod
    def of(cls, traces: Sequence[LineOf[StepTraced]]) -> "ComputeSplits":
        steps = [step for line in _some(traces) if (step := TracedStep.of(line))]
        least = _least(steps)
        seconds: defaultdict[int, defaultdict[Cause, float]] = defaultdict(_none)
        stages: defaultdict[range, defaultdict[Cause, float]] = defaultdict(_none)
        for step in steps:
            for cause, spent in _by_cause(step, least[_key(step)]).items():
                seconds[step.rank][cause] += spent
                stages[step.stage][cause] += spent
        ranks = {rank: _shares(spent) for rank, spent in seconds.items()}
        return cls(ranks, {stage: _shares(spent) for stage, spent in stages.items()})

    def shares(self, rank: int) -> Shares:
        """Return the shares of `compute` by cause; they add up to 1."""
        if rank in self.by_rank:
            return self.by_rank[rank]
        return next((s for stage, s in self.by_stage.items() if rank in stage), UNTRACED)


def _some(traces: Sequence[LineOf[StepTraced]]) -> list[LineOf[StepTraced]]:
    """Return the traces of some steps, evenly spaced: more of a long run add nothing."""
    steps = sorted({step for line in traces if (step := whole(line.event.step)) is not None})
    chosen = set(steps[:: -(-len(steps) // MOST_STEPS) or 1])
    return [line for line in traces if whole(line.event.step) in chosen]


Key = tuple[int, int, int, int]


def _key(line: TracedStep) -> Key:
    """Return what lines of the same collectives have in common."""
    return line.step, line.peers.start, line.count, len(line.collectives)


def _least(lines: list[TracedStep]) -> dict[Key, np.ndarray]:
    """Return the least time that any peer spent in each collective."""
    least: dict[Key, np.ndarray] = {}
    for line in lines:
        key = _key(line)
        least[key] = np.minimum(least.get(key, line.collectives), line.collectives)
    return least


def _by_cause(line: TracedStep, least: np.ndarray) -> dict[Cause, float]:
    """Return seconds by cause. Preparing operations and copies to the accelerator count as
    computing."""
    parts = line.parts
    return {
        Cause.COMPUTE: parts["compute"] + parts["copy"] + parts["idle"],
        Cause.COMMUNICATE: parts["calls"] + float(least.sum()),
        Cause.BUBBLE: parts["bubble"],
        Cause.PEER_WAIT: float((line.collectives - least).sum()),
    }


def _shares(spent: dict[Cause, float]) -> Shares:
    whole = math.fsum(spent.values())
    if not 0 < whole < math.inf:
        return UNTRACED
    return {cause: seconds / whole for cause, seconds in spent.items()}


def _none() -> defaultdict[Cause, float]:
    return defaultdict(float)


def _times(values: object) -> np.ndarray | None:
    """Return an array of seconds; None if anything else is among the values."""
    if not isinstance(values, list):
        return None
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    sane = found.ndim == 1 and bool(((found >= 0) & (found <= LATEST_S)).all())
    return found if sane else None


def _ranks(pair: object) -> range | None:
    match pair:
        case [int(first), int(last)] if 0 <= first <= last:
            return range(first, last + 1)
    return None
