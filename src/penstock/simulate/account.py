"""The clock and the ledger of one life: work in closed form between two events.

A work span is a time in which nothing changes: the same replicas, the same speed. Saves come at
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
        self._parts = tuple(pair for pair in zip(STEP_INDEX, own.shares, strict=True) if pair[1])
        self.cycle_s = own.interval_s + own.save_cost_s
        # Read at every event: an attribute of `own` would be a second lookup each time.
        self._interval_s, self._step_s = own.interval_s, own.step_s
        self._fast_share, self._evaluate_share = own.fast_share, own.evaluate_share

    def spend(self, cause: int, seconds: float) -> None:
        """Let time pass in which all ranks do the same."""
        self.t += seconds
        self.seconds[cause] += seconds

    def rate(self) -> float:
        """Return the steps per second of stepping."""
        return self.speed / (self._step_s * self.slow)

    def stalled_s(self) -> tuple[float, float]:
        """Return the seconds in saves and in evaluations so far, of an average rank."""
        return self.seconds[CHECKPOINT], self.seconds[EVALUATE]

    def work(self, seconds: float) -> None:
        """Train for so many seconds."""
        books, interval, phase = self.seconds, self._interval_s, self.phase
        active, step = self.active, self.step
        x = phase + seconds
        cycles = floor(x / self.cycle_s)
        rest = x - cycles * self.cycle_s
        # The work until now, in this cycle: the phase goes on while a save holds it up.
        before = phase if phase < interval else interval
        worked = cycles * interval + (rest if rest < interval else interval) - before
        rate = self.speed / (self._step_s * self.slow)
        stepping = worked * self.work_share
        done = stepping * rate
        books[CHECKPOINT] += (seconds - worked + worked * self._fast_share) * active
        books[EVALUATE] += worked * self._evaluate_share * active
        if active < 1:
            books[DOWN] += seconds * (1 - active)
        if self.best > step:
            again = min(done, self.best - step) / rate
            books[REDO] += again * active
            fresh = (stepping - again) * active
        else:
            fresh = stepping * active
        if fresh:
            plain = fresh / self.slow
            books[PEER_WAIT] += fresh - plain
            for place, share in self._parts:
                books[place] += plain * share
        self.t += seconds
        self.step = step = step + done
        if step > self.best:
            self.best = step
        begun = cycles + (rest >= interval) - (phase >= interval)
        if begun > 0:
            self._note_saves(begun, rest, rate)
        self.phase = rest

    def _note_saves(self, begun: int, rest: float, rate: float) -> None:
        """Note the newest of the saves that began, and the one before it."""
        interval = self._interval_s
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
        step, books = self.step, self.seconds
        whole = floor(step + 1e-9)
        lost = (step - whole if step > whole else 0.0) / self.rate()
        if lost and self.best == step:  # else it was done again, and is `redo` already
            self.best = float(whole)
            plain = lost / self.slow * self.active
            # Never more than there are, as when a straggler began within the step.
            back = min(lost * self.active - plain, books[PEER_WAIT])
            books[PEER_WAIT] -= back
            redo = books[REDO] + back
            for place, share in self._parts:
                back = plain * share
                there = books[place]
                back = back if back < there else there
                books[place] = there - back
                redo += back
            books[REDO] = redo
        self.step = float(whole)
        return lost

    def resume(self, step: int) -> None:
        """Go on from a checkpoint."""
        self.step = self.saved = self.saved_before = float(step)
        self.saved_t, self.phase = -inf, 0.0
