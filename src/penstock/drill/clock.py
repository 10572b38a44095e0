"""The drill's own clock: where the ranks' time went, from their pulses and the faults alone.

Made without the journal, so that what the ledger says of `down`, `redo` and `checkpoint` can be
held against something. Seconds are rank-seconds, moments are of the machine's monotonic clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

READY = "ready"
SAVING = frozenset({"keep", "stage", "save"})
# Of a rank that is ready: work has stopped until the next step.
RECOVERING = frozenset({"load", "regroup", "heal"})
STEP = frozenset({"fetch", "forward", "reduce", "vote", "voted", "update", "updated"})
CAUSES = ("down", "redo", "checkpoint")
SHARE = 0.05  # how far ledger and clock may be apart
SLACK_S = 0.05  # of a rank; below this the two are equal
SEEN_S = 0.5  # the most that a supervisor may need to see a death: a kernel takes time to bury


@dataclass(frozen=True)
class Beat:
    """A rank entered a phase."""

    step: int
    phase: str
    t: float


@dataclass(frozen=True)
class Life:
    """One attempt: each rank's beats in order, and when a fault ended it.

    `losses` are the moments that it lost a rank and went on without it; a rank that comes back
    begins again with `start`.
    """

    beats: Mapping[int, Sequence[Beat]]
    died: float | None = None
    opens: bool = True  # it begins an invocation, so that nothing was down before it
    cut: bool = False  # its supervisor died too: its window ends with the last thing written
    losses: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @property
    def end(self) -> float:
        if self.died is not None:
            return self.died
        return max(beats[-1].t for beats in self.beats.values() if beats)


@dataclass
class Spent:
    """Rank-seconds by cause, and what the lives came to."""

    down: float = 0.0
    redo: float = 0.0
    checkpoint: float = 0.0
    highest: int = -1  # the furthest step that anyone finished
    redone: int = 0  # steps that were finished more than once


def account(lives: Sequence[Life]) -> Spent:
    """All attempts of a run in order."""
    spent = Spent()
    died: float | None = None
    for life in lives:
        before = spent.highest
        since = None if life.opens else died
        again = [_add_rank(spent, life, rank, since, before) for rank in life.beats]
        spent.redone += max(again, default=0)
        died = life.died
    return spent


def _add_rank(spent: Spent, life: Life, rank: int, since: float | None, before: int) -> int:
    """One rank in one attempt; how many steps it made again. `since` is when it went down."""
    losses = list(life.losses.get(rank, ()))
    again = 0
    for beats in _processes(life.beats[rank]):
        lost = next((t for t in losses if t >= beats[0].t), None)
        end = lost if lost is not None else life.died
        within = [beat for beat in beats if end is None or beat.t <= end]
        ready = next((i for i, beat in enumerate(within) if beat.phase == READY), len(within))
        until = within[ready].t if ready < len(within) else (end or within[-1].t)
        spent.down += 0.0 if since is None else until - since
        again += _finish(spent, beats, before)
        highest = _add_work(spent, within[ready:], before)
        if end is not None and not (life.cut and lost is None):
            spent.redo += _lost(within[ready:], beats, highest, end)
        since = lost
    if since is not None and (losses or not life.beats[rank]):  # it is not there any more
        spent.down += life.end - since
    return again


def _processes(beats: Sequence[Beat]) -> list[list[Beat]]:
    """A rank's beats, cut where another process takes its place."""
    parts: list[list[Beat]] = []
    for beat in beats:
        if beat.phase == "start" or not parts:
            parts.append([])
        parts[-1].append(beat)
    return parts


def _finish(spent: Spent, beats: Sequence[Beat], highest: int) -> int:
    """The steps that a process finished, also while a peer was dead already; how many of them had
    been by then. `highest` is the furthest step of earlier attempts."""
    again = 0
    for beat, _ in pairwise(beats):
        if beat.phase == "updated":  # and it went on from there
            again += beat.step <= highest
            highest = max(highest, beat.step)
            spent.highest = max(spent.highest, beat.step)
    return again


def _add_work(spent: Spent, beats: Sequence[Beat], highest: int) -> int:
    """From `ready` to the last beat; `highest` is the furthest step of earlier attempts.

    Returns up to which step one is made again.
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


def _lost(within: Sequence[Beat], beats: Sequence[Beat], highest: int, end: float) -> float:
    """What a fault took: the step, or the save, that was not finished; redone ones count already.

    The last beat has no end of its own. A step that was not finished counts from its beginning; one
    that a peer of the dead still finished was not lost with it.
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


def next_new_step(lives: Sequence[Life], number: int, t: float) -> float | None:
    """When the first step was finished that nobody had finished before a blow at `t` in life
    `number`. What others still finish beside a dead rank is no sign of recovery: they have to have
    started again, or regrouped."""
    hit = lives[number]
    every = [beat for beats in hit.beats.values() for beat in beats]
    regrouped = [beat.t for beat in every if beat.phase in RECOVERING and beat.t > t]
    since = min(regrouped, default=float("inf")) if hit.died is None else float("inf")
    finished = [one for life in lives[: number + 1] for one in _finishes(life)]
    done = {step for step, at in finished if at < since}
    later = [one for life in lives[number + 1 :] for one in _finishes(life)]
    new = [at for step, at in finished + later if step not in done]
    return min(new, default=None)


def _finishes(life: Life) -> list[tuple[int, float]]:
    """Steps, and when each was finished by any rank."""
    return [
        (beat.step, after.t)
        for beats in life.beats.values()
        for beat, after in pairwise(beats)
        if beat.phase == "updated"
    ]


def agree(ledger_s: float, clock_s: float, slack_s: float) -> bool:
    """Whether the ledger says what the drill's clock says."""
    return abs(ledger_s - clock_s) <= max(SHARE * clock_s, slack_s)
