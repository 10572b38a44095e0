"""A watcher of the ranks of an attempt: it reads their pulses and finds hangs and stragglers.

`policy/hang.py` and `policy/straggler.py` decide. Only differences of this process's monotonic
clock count, so a corrected clock never looks like a hang.
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

SOON_S = 1.0  # a rank that was silent for less than this does not hang
STEPS_S = 2.0  # between two readings of the step times


@dataclass
class LastSign:
    """The last sign of life of a rank, and when this process first saw it."""

    t: float
    beat: Heartbeat | None = None
    processes: int = 0  # of this rank in this attempt that gave a sign

    def update(self, beat: Heartbeat, t: float) -> None:
        if self.beat is None or (beat.pid, beat.count) != (self.beat.pid, self.beat.count):
            self.processes += self.beat is None or beat.pid != self.beat.pid
            self.beat, self.t = beat, t


@dataclass
class Watcher:
    """The signs of life of one attempt's ranks."""

    scratch: Path
    journal: Path
    attempt: int
    ranks: int
    timeout_s: float  # guard.timeout
    clock: Callable[[], float] = time.monotonic
    began_step: bool = False  # any rank did
    stragglers: frozenset[int] = frozenset()
    signs: dict[int, LastSign] = field(default_factory=dict)
    _steps_t: float = 0.0

    def __post_init__(self) -> None:
        self._steps_t = self.clock()
        self.signs = {rank: LastSign(self._steps_t) for rank in range(self.ranks)}

    def rank_started(self, rank: int) -> None:
        """Count silence from now on: the new process has given no sign yet."""
        self.signs[rank].t = self.clock()

    def find_hang(
        self,
        living: Collection[int],
        stopped: Collection[int] = (),
        waits: Mapping[int, bool | None] = MappingProxyType({}),
    ) -> Hang | None:
        """Read the latest pulses and return the hang, if there is one.

        Call it a few times a second. `waits` is as in `hang.blame`.
        """
        t = self.clock()
        for rank, sign in self.signs.items():
            beat = pulse.read_heartbeat(self.scratch, rank)
            if beat is not None and beat.attempt == self.attempt:
                sign.update(beat, t)
                self.began_step |= _began_step(beat)
        ranks = self.rank_states(living, stopped)
        if max((one.still_s for one in ranks), default=0.0) < SOON_S:
            return None  # without reading the journal
        totals = self._last_steps(ranks[0].rank, hang.KEPT_STEPS)["total"].tolist()
        return hang.decide(ranks, hang.usual_s(totals), self.timeout_s, waits)

    def rank_states(
        self, living: Collection[int], stopped: Collection[int] = ()
    ) -> list[RankObservation]:
        """Return where each living rank is, and for how long it has been there."""
        t, states = self.clock(), []
        for rank in living:
            sign = self.signs[rank]
            phase, step = (sign.beat.phase, sign.beat.step) if sign.beat else ("start", 0)
            newcomer = sign.processes > 1 and phase in hang.BEFORE
            states.append(RankObservation(rank, phase, step, t - sign.t, rank in stopped, newcomer))
        return states

    def straggler_changes(self) -> list[straggler.StragglerChange]:
        """Return the ranks that became stragglers since the last call, or are none any more."""
        if self.ranks == 1 or self.clock() - self._steps_t < STEPS_S:
            return []
        self._steps_t = self.clock()
        by_step = {rank: self._work_s(rank) for rank in range(self.ranks)}
        # In a step that one rank missed, the others had more work.
        common = sorted(set.intersection(*(set(steps) for steps in by_step.values())))
        work_s = {rank: [steps[step] for step in common] for rank, steps in by_step.items()}
        self.stragglers, changes = straggler.decide(self.stragglers, work_s)
        return changes

    def _work_s(self, rank: int) -> dict[int, float]:
        """Return the seconds of a rank's own work in each of its last steps."""
        steps = self._last_steps(rank, straggler.KEPT_STEPS)
        work_s = steps["fetch"] + steps["compute"]
        return dict(zip(steps["step"].tolist(), work_s.tolist(), strict=True))

    def _last_steps(self, rank: int, most: int) -> np.ndarray:
        path = self.journal / file_name(self.attempt, range(rank, rank + 1), "steps")
        try:
            count = (path.stat().st_size - HEADER.size) // DTYPE["steps"].itemsize
        except OSError:
            count = 0
        return read_records(path, "steps", max(0, count - most))


def _began_step(beat: Heartbeat) -> bool:
    """Return whether a rank has begun a step; a new run evaluates before its first step."""
    return beat.phase in hang.LOOP and not (beat.phase == "evaluate" and beat.step == 0)
