"""The drill's own clock: where the ranks' time went, from their pulses and the faults alone.

It does not read the journal, so that the ledger's `down`, `redo` and `checkpoint` can be compared
with it. Seconds are rank-seconds; moments are on the machine's monotonic clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

READY = "ready"
SAVING = frozenset({"keep", "stage", "save"})
# Phases in which a rank that is ready does no work until the next step.
RECOVERING = frozenset({"load", "regroup", "heal"})
STEP = frozenset({"fetch", "forward", "reduce", "vote", "voted", "update", "updated"})
CAUSES = ("down", "redo", "checkpoint")
SHARE = 0.05  # the allowed relative difference of ledger and clock
SLACK_S = 0.05  # per rank; a smaller difference is none
SEEN_S = 0.5  # the longest time to see a death: the kernel takes time to free a process


@dataclass(frozen=True)
class PhaseBeat:
    """The moment when a rank entered a phase."""

    step: int
    phase: str
    t: float


@dataclass(frozen=True)
class AttemptBeats:
    """The beats of one attempt by rank, and when a fault ended it.

    `losses` are the moments when it lost a rank and went on without it; a rank that comes back
    begins again with `start`.
    """

    beats: Mapping[int, Sequence[PhaseBeat]]
    died: float | None = None
    opens: bool = True  # it begins an invocation, so that nothing was down before it
    cut: bool = False  # its supervisor died too: it ends with the last record
    losses: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @property
    def end(self) -> float:
        if self.died is not None:
            return self.died
        return max(beats[-1].t for beats in self.beats.values() if beats)


@dataclass
class ClockAccount:
    """Rank-seconds by cause, and the steps that the attempts made."""

    down: float = 0.0
    redo: float = 0.0
    checkpoint: float = 0.0
    highest: int = -1  # the furthest step that anyone finished
    redone: int = 0  # steps that were finished more than once


def account(attempts: Sequence[AttemptBeats]) -> ClockAccount:
    """Add up all attempts of a run, which are in order."""
    spent = ClockAccount()
    died: float | None = None
    for attempt in attempts:
        before = spent.highest
        since = None if attempt.opens else died
        again = [_add_rank(spent, attempt, rank, since, before) for rank in attempt.beats]
        spent.redone += max(again, default=0)
        died = attempt.died
    return spent


def _add_rank(
    spent: ClockAccount, attempt: AttemptBeats, rank: int, since: float | None, before: int
) -> int:
    """Add one rank of one attempt; return how many steps it made again.

    `since` is when the rank went down.
    """
    losses = list(attempt.losses.get(rank, ()))
    again = 0
    for beats in _processes(attempt.beats[rank]):
        lost = next((t for t in losses if t >= beats[0].t), None)
        end = lost if lost is not None else attempt.died
        within = [beat for beat in beats if end is None or beat.t <= end]
        ready = next((i for i, beat in enumerate(within) if beat.phase == READY), len(within))
        until = within[ready].t if ready < len(within) else (end or within[-1].t)
        spent.down += 0.0 if since is None else until - since
        again += _finish(spent, beats, before)
        highest = _add_work(spent, within[ready:], before)
        if end is not None and not (attempt.cut and lost is None):
            spent.redo += _lost(within[ready:], beats, highest, end)
        since = lost
    if since is not None and (losses or not attempt.beats[rank]):  # it is not there any more
        spent.down += attempt.end - since
    return again


def _processes(beats: Sequence[PhaseBeat]) -> list[list[PhaseBeat]]:
    """Split a rank's beats where another process takes its place."""
    parts: list[list[PhaseBeat]] = []
    for beat in beats:
        if beat.phase == "start" or not parts:
            parts.append([])
        parts[-1].append(beat)
    return parts


def _finish(spent: ClockAccount, beats: Sequence[PhaseBeat], highest: int) -> int:
    """Note the steps that a process finished; return how many of them were done before.

    Steps finished while a peer was already dead count too. `highest` is the furthest step of
    earlier attempts.
    """
    again = 0
    for beat, _ in pairwise(beats):
        if beat.phase == "updated":  # and it went on from there
            again += beat.step <= highest
            highest = max(highest, beat.step)
            spent.highest = max(spent.highest, beat.step)
    return again


def _add_work(spent: ClockAccount, beats: Sequence[PhaseBeat], highest: int) -> int:
    """Add the work from `ready` to the last beat; return up to which step it is a repetition.

    `highest` is the furthest step of earlier attempts.
    """
    reached = 0
    unfinished_s = 0.0  # of the step that is being made
    for beat, after in pairwise(beats):
        seconds = after.t - beat.t
        if beat.phase == "fetch":
            unfinished_s = 0.0
        if beat.phase in RECOVERING:
            spent.down += seconds
        elif beat.step <= highest and beat.phase != READY:
            spent.redo += seconds
        elif beat.phase in SAVING:
            spent.checkpoint += seconds
        elif beat.phase in STEP:
            unfinished_s += seconds
        if beat.phase == "updated":
            unfinished_s = 0.0
            reached = max(reached, beat.step)
        if after.phase in RECOVERING and beat.phase not in RECOVERING:
            spent.redo += unfinished_s
            unfinished_s = 0.0
        if after.phase == "fetch":
            highest = max(highest, reached if after.step <= reached else after.step - 1)
    return highest


def _lost(
    within: Sequence[PhaseBeat], beats: Sequence[PhaseBeat], highest: int, end: float
) -> float:
    """Return the seconds that a fault took: the step or the save that was not finished.

    The last beat has no end of its own. An unfinished step counts from its beginning. A step that a
    peer of the dead rank still finished was not lost. Repeated steps are counted elsewhere.
    """
    if not within:
        return 0.0
    last = within[-1]
    if last.phase not in STEP or last.step <= highest:
        return end - last.t
    if any(b.phase == "updated" and b.step == last.step for b, _ in pairwise(beats)):
        return 0.0
    begun = last.t
    for beat in reversed(within):
        if beat.step != last.step or beat.phase not in STEP:
            break
        begun = beat.t
    return end - begun


def next_new_step(attempts: Sequence[AttemptBeats], number: int, t: float) -> float | None:
    """Return when a new step was first finished after a fault at `t` in attempt `number`.

    New means: no rank had finished it before. Steps that the others still finish beside a dead rank
    do not count: they must have started again, or regrouped.
    """
    hit = attempts[number]
    every = [beat for beats in hit.beats.values() for beat in beats]
    regrouped = [beat.t for beat in every if beat.phase in RECOVERING and beat.t > t]
    since = min(regrouped, default=float("inf")) if hit.died is None else float("inf")
    finished = [one for attempt in attempts[: number + 1] for one in _finishes(attempt)]
    done = {step for step, at in finished if at < since}
    later = [one for attempt in attempts[number + 1 :] for one in _finishes(attempt)]
    new = [at for step, at in finished + later if step not in done]
    return min(new, default=None)


def _finishes(attempt: AttemptBeats) -> list[tuple[int, float]]:
    """Return steps, and when any rank finished each."""
    return [
        (beat.step, after.t)
        for beats in attempt.beats.values()
        for beat, after in pairwise(beats)
        if beat.phase == "updated"
    ]


def agree(ledger_s: float, clock_s: float, slack_s: float) -> bool:
    """Return whether the ledger agrees with the drill's clock."""
    return abs(ledger_s - clock_s) <= max(SHARE * clock_s, slack_s)
