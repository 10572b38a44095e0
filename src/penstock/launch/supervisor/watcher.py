"""Watching the ranks of an attempt by their pulses: whether they get on, and who is slow.

What it adds up to is decided in `policy/hang.py` and `policy/straggler.py`. Only differences of the
monotonic clock of this process count, so no correction of a clock looks like a hang.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from penstock.guard.detect import pulse
from penstock.guard.detect.pulse import Heartbeat
from penstock.ledger.journal.records import DTYPE, HEADER, file_name, read_records
from penstock.policy import hang, straggler
from penstock.policy.hang import Hang, RankObservation

SOON_S = 1.0  # nobody has been still for long enough to think about it
STEPS_S = 2.0  # between looks at the times of the steps


@dataclass
class Sign:
    """The last sign of a rank, and when it was seen first."""

    t: float
    beat: Heartbeat | None = None
    lives: int = 0  # processes of this attempt that were seen

    def take(self, beat: Heartbeat, t: float) -> None:
        if self.beat is None or (beat.pid, beat.count) != (self.beat.pid, self.beat.count):
            self.lives += self.beat is None or beat.pid != self.beat.pid
            self.beat, self.t = beat, t


@dataclass
class Watcher:
    scratch: Path
    journal: Path
    attempt: int
    ranks: int
    timeout_s: float  # guard.timeout
    clock: Callable[[], float] = time.monotonic
    begun: bool = False  # whether any rank has begun a step
    stragglers: frozenset[int] = frozenset()
    signs: dict[int, Sign] = field(default_factory=dict)
    _steps_t: float = 0.0

    def __post_init__(self) -> None:
        self._steps_t = self.clock()
        self.signs = {rank: Sign(self._steps_t) for rank in range(self.ranks)}

    def started(self, rank: int) -> None:
        """A new process, which has given no sign yet."""
        self.signs[rank].t = self.clock()

    def look(
        self,
        living: Collection[int],
        stopped: Collection[int] = (),
        waits: Mapping[int, bool | None] = MappingProxyType({}),
    ) -> Hang | None:
        """Take in the latest signs. Call it a few times a second; `waits` as in `hang.blame`."""
        t = self.clock()
        for rank, sign in self.signs.items():
            beat = pulse.read_heartbeat(self.scratch, rank)
            if beat is not None and beat.attempt == self.attempt:
                sign.take(beat, t)
                self.begun |= _begun(beat)
        found = self.seen(living, stopped)
        if max((s.still_s for s in found), default=0.0) < SOON_S:
            return None  # without a look at the disk
        totals = self._steps(found[0].rank, hang.KEPT_STEPS)["total"].tolist()
        return hang.decide(found, hang.usual_s(totals), self.timeout_s, waits)

    def seen(self, living: Collection[int], stopped: Collection[int] = ()) -> list[RankObservation]:
        t, found = self.clock(), []
        for rank in living:
            sign = self.signs[rank]
            phase, step = (sign.beat.phase, sign.beat.step) if sign.beat else ("start", 0)
            newcomer = sign.lives > 1 and phase in hang.BEFORE
            found.append(RankObservation(rank, phase, step, t - sign.t, rank in stopped, newcomer))
        return found

    def slow(self) -> list[straggler.StragglerChange]:
        """Who became a straggler, or is none any more, since it was asked last."""
        if self.ranks == 1 or self.clock() - self._steps_t < STEPS_S:
            return []
        self._steps_t = self.clock()
        every = {rank: self._work_s(rank) for rank in range(self.ranks)}
        # Steps that one of them was not there for were more work for the others.
        common = sorted(set.intersection(*(set(steps) for steps in every.values())))
        work_s = {rank: [steps[step] for step in common] for rank, steps in every.items()}
        self.stragglers, changes = straggler.decide(self.stragglers, work_s)
        return changes

    def _work_s(self, rank: int) -> dict[int, float]:
        """What the rank's own work took in each of its last steps."""
        steps = self._steps(rank, straggler.KEPT_STEPS)
        work_s = steps["fetch"] + steps["compute"]
        return dict(zip(steps["step"].tolist(), work_s.tolist(), strict=True))

    def _steps(self, rank: int, most: int) -> np.ndarray:
        path = self.journal / file_name(self.attempt, range(rank, rank + 1), "steps")
        try:
            whole = (path.stat().st_size - HEADER.size) // DTYPE["steps"].itemsize
        except OSError:
            whole = 0
        return read_records(path, "steps", max(0, whole - most))


def _begun(beat: Heartbeat) -> bool:
    """The evaluation of a new run comes before its first step."""
    return beat.phase in hang.LOOP and not (beat.phase == "evaluate" and beat.step == 0)
