"""The faults that a drill knows: what happens, where in the work, and what has to hold afterwards.

Data only. A blow is sprung by the rank itself at a named place of its work
(`guard/detect/failpoints.py`); what comes from outside is a deed of the drill (`drill/deeds.py`).
"""

import itertools
from dataclasses import dataclass, replace
from typing import Literal

from penstock.guard.detect.failpoints import Failpoint

Where = Literal["any", "middle", "staged", "saved", "evaluated", "late", "after_save"]
# same: bit-identical weights. near: another layout, so the same samples and a loss within float
# noise. skipped: the samples of one batch are left out on purpose, all others used once.
Outcome = Literal["same", "near", "skipped"]
SAVING = ("stage", "write", "publish")


@dataclass(frozen=True)
class Scale:
    """The scratch run: its steps, and the steps between what it does beside them."""

    steps: int = 24
    fast: int = 3  # between copies in memory
    durable: int = 8  # between checkpoints
    evaluate: int = 12

    def step(self, where: Where) -> int | None:
        """The step that a fault falls on; None is the first that comes."""
        half = self.steps // 2
        match where:
            case "any":
                return None
            case "middle":  # far from a copy: something is lost
                return _multiple(self.fast, half) + max(1, self.fast - 1)
            case "staged":
                return _multiple(self.fast, half + self.fast)
            case "saved":
                return _multiple(self.durable, self.steps * 3 // 4)
            case "evaluated":
                return _multiple(self.evaluate, half)
            case "after_save":
                return _multiple(self.durable, self.steps * 3 // 4) + 2
            case "late":  # two checkpoints are there
                step = _multiple(self.durable, self.steps * 3 // 4) + self.fast
                return step + 1 if step % self.fast == 0 else step

    @property
    def two_checkpoints(self) -> bool:
        """Whether there are two checkpoints when a `late` fault falls."""
        return (self.step("late") or 0) > 2 * self.durable

    def steps_for_two_checkpoints(self) -> int:
        """The fewest steps of a run that has two checkpoints when a `late` fault falls."""
        return next(n for n in itertools.count(1) if replace(self, steps=n).two_checkpoints)


def _multiple(of: int, upto: int) -> int:
    return max(1, upto // of) * of


@dataclass(frozen=True)
class Blow:
    """One thing that happens to one rank; `rank` counts from the end when it is negative."""

    action: str
    phase: str
    at: Where | int = "middle"
    rank: int | None = -1
    ms: float = 0.0
    times: int = 1  # on as many steps one after the other
    then: bool = False  # armed when the one before it has fallen: it hits the next attempt


@dataclass(frozen=True)
class Fault:
    """One line of the catalogue."""

    name: str
    what: str
    told: tuple[str, ...]  # the events that tell of it; any one will do, and nobody need if none
    blows: tuple[Blow, ...] = ()
    deed: str = ""  # what the drill does from outside
    outcome: Outcome = "same"
    needs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()  # of the run file, for this drill alone
    refuses: bool = False  # the attempt after it may end by itself: it says what is wrong
    clocked: bool = True  # whether the ledger is held against the drill's clock

    def live(self) -> "Fault":
        """As it is where the other replicas go on: sums are made in another order meanwhile, only
        the first replica saves, and nobody loads but regroups."""
        outcome: Outcome = "near" if self.outcome == "same" else self.outcome
        told = (*self.told, "lost") if "fault" in self.told or "hang" in self.told else self.told
        blows = [replace(b, rank=0) if b.phase in SAVING else b for b in self.blows]
        blows = [replace(b, phase="regroup") if b.phase == "load" else b for b in blows]
        return replace(self, told=told, outcome=outcome, blows=tuple(blows))

    def traps(self, scale: Scale, ranks: int) -> list[tuple[Failpoint, bool]]:
        """In order, and whether each is armed only when the one before it has sprung."""
        made: list[tuple[Failpoint, bool]] = []
        for blow in self.blows:
            first = blow.at if isinstance(blow.at, int) else scale.step(blow.at)
            rank = None if blow.rank is None else blow.rank % ranks
            for i in range(blow.times):
                step = None if first is None else first + i
                name = f"{len(made):02d}-{blow.action}-{blow.phase}"
                trap = Failpoint(name, blow.action, blow.phase, rank, step, blow.ms)
                made.append((trap, blow.then and i == 0))
        return made
