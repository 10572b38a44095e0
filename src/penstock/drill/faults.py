"""The types of a drill: a fault, its injections into ranks, and the record of each one.

A rank injects a fault into itself at a named failpoint of its work (`guard/detect/failpoints.py`);
what comes from outside is an action of the drill (`drill/actions.py`).
"""

import itertools
import time
from dataclasses import dataclass, replace
from typing import Literal

from penstock.guard.detect.failpoints import Failpoint
from penstock.meter.clock import now

# From the machine's monotonic clock, which all processes share, to the clock of the journal.
OFFSET_S = now() - time.monotonic()
# Actions that a rank does not survive.
LETHAL = frozenset({"kill", "kill_soon", "stop", "exit", "raise", "oom"})
# At which step an injection happens; `ScratchScale.step` has the meaning of each.
StepChoice = Literal["any", "middle", "staged", "saved", "evaluated", "late", "after_save"]
# same: bit-identical weights. near: another layout, so the same samples and a loss within float
# noise. skipped: the samples of one batch are left out on purpose, all others used once.
WeightsRule = Literal["same", "near", "skipped"]
SAVING = ("stage", "write", "publish")


@dataclass(frozen=True)
class ScratchScale:
    """The length of a scratch run, and the steps between its copies, saves and evaluations."""

    steps: int = 24
    fast: int = 3  # between copies in memory
    durable: int = 8  # between checkpoints
    evaluate: int = 12

    def step(self, where: StepChoice) -> int | None:
        """Return the step of an injection; None means the first step that comes."""
        half = self.steps // 2
        match where:
            case "any":
                return None
            case "middle":  # long after a copy: some steps are lost
                return _multiple(self.fast, half) + max(1, self.fast - 1)
            case "staged":
                return _multiple(self.fast, half + self.fast)
            case "saved":
                return _multiple(self.durable, self.steps * 3 // 4)
            case "evaluated":
                return _multiple(self.evaluate, half)
            case "after_save":
                return _multiple(self.durable, self.steps * 3 // 4) + 2
            case "late":  # after two checkpoints
                step = _multiple(self.durable, self.steps * 3 // 4) + self.fast
                return step + 1 if step % self.fast == 0 else step

    @property
    def two_checkpoints(self) -> bool:
        """True if there are two checkpoints when a `late` fault is injected."""
        return (self.step("late") or 0) > 2 * self.durable

    def steps_for_two_checkpoints(self) -> int:
        """Return the fewest steps that give two checkpoints before a `late` fault."""
        return next(n for n in itertools.count(1) if replace(self, steps=n).two_checkpoints)


def _multiple(of: int, upto: int) -> int:
    return max(1, upto // of) * of


@dataclass(frozen=True)
class Injection:
    """One failpoint in one rank; a negative `rank` counts from the end."""

    action: str
    phase: str
    at: StepChoice | int = "middle"
    rank: int | None = -1
    ms: float = 0.0
    times: int = 1  # in so many steps in a row
    then: bool = False  # armed after the injection before it: it hits the next attempt


@dataclass(frozen=True)
class InjectedFault:
    """The record of a fault that happened to a run."""

    t: float  # on the machine's monotonic clock
    attempt: int
    rank: int | None
    what: str
    lethal: bool

    def __str__(self) -> str:
        who = f"rank {self.rank}, " if self.rank is not None else ""
        return f"{self.what} ({who}attempt {self.attempt})"


@dataclass(frozen=True)
class DrillFault:
    """A fault that a drill can inject: one line of the catalogue."""

    name: str
    what: str
    reported_by: tuple[str, ...]  # journal events, one of which must report it; () if none need
    injections: tuple[Injection, ...] = ()
    outside_action: str = ""  # what the drill does from outside (`actions.py`, `hosts.py`)
    outcome: WeightsRule = "same"
    needs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()  # of the run file, for this drill alone
    refuses: bool = False  # the next attempt may end by itself, with a message
    check_clock: bool = True  # compare the ledger with the drill's clock

    def in_live_mode(self) -> "DrillFault":
        """Return the fault for a run where the other replicas go on.

        Then sums are made in another order, only the first replica saves, and ranks regroup instead
        of loading.
        """
        outcome: WeightsRule = "near" if self.outcome == "same" else self.outcome
        reported_by = (
            (*self.reported_by, "lost")
            if "fault" in self.reported_by or "hang" in self.reported_by
            else self.reported_by
        )
        injections = [replace(b, rank=0) if b.phase in SAVING else b for b in self.injections]
        injections = [replace(b, phase="regroup") if b.phase == "load" else b for b in injections]
        return replace(self, reported_by=reported_by, outcome=outcome, injections=tuple(injections))

    def failpoints(self, scale: ScratchScale, ranks: int) -> list[tuple[Failpoint, bool]]:
        """Return the failpoints in order; True: armed only after the one before has triggered."""
        made: list[tuple[Failpoint, bool]] = []
        for injection in self.injections:
            first = injection.at if isinstance(injection.at, int) else scale.step(injection.at)
            rank = None if injection.rank is None else injection.rank % ranks
            for i in range(injection.times):
                step = None if first is None else first + i
                name = f"{len(made):02d}-{injection.action}-{injection.phase}"
                failpoint = Failpoint(
                    name, injection.action, injection.phase, rank, step, injection.ms
                )
                made.append((failpoint, injection.then and i == 0))
        return made
