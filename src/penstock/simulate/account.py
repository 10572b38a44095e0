"""The clock and the ledger of one life: work in closed form between two events.

A stretch is a time in which nothing changes: the same replicas, the same speed. Saves come at
equal distances in it, so that steps, saves and the newest safe checkpoint follow from its length.
Seconds are those of an average rank; their sum over the causes is the wall clock.
"""

from math import floor, inf

from penstock.ledger.causes import Cause
from penstock.plan.job.outcome import STEP_CAUSES
from penstock.simulate.conditions import Conditions

INDEX = {cause: i for i, cause in enumerate(Cause)}
STEP_INDEX = tuple(INDEX[Cause(name)] for name in STEP_CAUSES)
PEER_WAIT, DATA_WAIT, CHECKPOINT, EVALUATE, STARTUP, DOWN, REDO = (
    INDEX[cause]
    for cause in (
        Cause.PEER_WAIT,
        Cause.DATA_WAIT,
        Cause.CHECKPOINT,
        Cause.EVALUATE,
        Cause.STARTUP,
        Cause.DOWN,
        Cause.REDO,
    )
)


class LifeAccount:
    """The time, the progress and the seconds by cause of one life."""

    def __init__(self, own: Conditions) -> None:
        self.own = own
        self.t = 0.0
        self.seconds = [0.0] * len(Cause)
        self.step = 0.0  # progress
        self.best = 0.0  # the furthest that it ever was
        self.speed = 1.0  # of steps; below 1 with fewer replicas
        self.slow = 1.0  # of the slowest straggler
        self.active = 1.0  # share of the ranks that work
        self.phase = 0.0  # seconds since the last save was through, or since the start
        self.saved = self.saved_before = 0.0  # steps of the newest save, and of the one before it
        self.saved_t = -inf
        self.work_share = 1 - own.evaluate_share - own.fast_share
        self._parts = tuple(zip(STEP_INDEX, own.shares, strict=True))
        self.cycle_s = own.interval_s + own.save_cost_s

    def spend(self, cause: int, seconds: float) -> None:
        """Let time pass in which all ranks do the same."""
        self.t += seconds
        self.seconds[cause] += seconds

    def rate(self) -> float:
        """Return the steps per second of stepping."""
        return self.speed / (self.own.step_s * self.slow)

    def stalled_s(self) -> tuple[float, float]:
        """Return the seconds in saves and in evaluations so far, of an average rank."""
        return self.seconds[CHECKPOINT], self.seconds[EVALUATE]

    def work(self, seconds: float) -> None:
        """Train for so many seconds."""
        own, books, interval = self.own, self.seconds, self.own.interval_s
        x = self.phase + seconds
        cycles = floor(x / self.cycle_s)
        rest = x - cycles * self.cycle_s
        worked = cycles * interval + min(rest, interval) - min(self.phase, interval)
        active, rate = self.active, self.rate()
        stepping = worked * self.work_share
        done = stepping * rate
        again = min(done, max(self.best - self.step, 0.0)) / rate
        books[DOWN] += seconds * (1 - active)
        books[CHECKPOINT] += (seconds - worked + worked * own.fast_share) * active
        books[EVALUATE] += worked * own.evaluate_share * active
        books[REDO] += again * active
        fresh = (stepping - again) * active
        if fresh:
            plain = fresh / self.slow
            books[PEER_WAIT] += fresh - plain
            for place, share in self._parts:
                books[place] += plain * share
        self.t += seconds
        self.step += done
        if self.step > self.best:
            self.best = self.step
        self._note_saves(cycles, rest, rate)
        self.phase = rest

    def _note_saves(self, cycles: int, rest: float, rate: float) -> None:
        """Note the newest save that began, and the one before it."""
        interval = self.own.interval_s
        begun = cycles + (rest >= interval) - (self.phase >= interval)
        if begun < 1:
            return
        since = 0.0 if rest >= interval else rest  # work since it began
        newest = self.step - since * self.work_share * rate
        self.saved_before = newest - interval * self.work_share * rate if begun > 1 else self.saved
        self.saved = newest
        self.saved_t = self.t - (
            rest - interval if rest >= interval else rest + self.own.save_cost_s
        )

    def seconds_to_step(self, target: float) -> float:
        """Return the seconds of training until a step is reached."""
        if target == inf:
            return inf
        interval = self.own.interval_s
        worked = max(target - self.step, 0.0) / self.rate() / self.work_share
        x = min(self.phase, interval) + worked
        cycles = floor(x / interval)
        if cycles and x == cycles * interval:
            cycles -= 1
        return max(cycles * self.cycle_s + x - cycles * interval - self.phase, 0.0)

    def durable_step(self) -> int:
        """Return the step of the newest checkpoint that is safe by now."""
        safe = self.t - self.saved_t >= self.own.save_s
        return floor((self.saved if safe else self.saved_before) + 1e-9)

    def fast_step(self) -> int:
        """Return the step of the newest copy in memory, or of a newer safe checkpoint."""
        durable, every = self.durable_step(), self.own.fast_every
        if not every:
            return durable
        return max(durable, floor((self.step + 1e-9) / every) * every)

    def interrupt(self) -> float:
        """Lose the step that is under way; return the seconds of an active rank that it took."""
        whole = floor(self.step + 1e-9)
        lost = max(self.step - whole, 0.0) / self.rate()
        if lost and self.best == self.step:  # else it was done again, and is `redo` already
            self.best = float(whole)
            plain = lost / self.slow * self.active
            self._take_back(PEER_WAIT, lost * self.active - plain)
            for place, share in self._parts:
                self._take_back(place, plain * share)
        self.step = float(whole)
        return lost

    def _take_back(self, cause: int, seconds: float) -> None:
        """Count seconds of a cause as `redo`; never more than there are, as when a straggler began
        within the step.
        """
        seconds = min(seconds, self.seconds[cause])
        self.seconds[cause] -= seconds
        self.seconds[REDO] += seconds

    def resume(self, step: int) -> None:
        """Go on from a checkpoint."""
        self.step = self.saved = self.saved_before = float(step)
        self.saved_t, self.phase = -inf, 0.0
