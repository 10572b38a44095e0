"""History of a run from its journal: invocations, their attempts, their faults.

An invocation is one `penstock train` process; its window is the time that the ledger has to
explain. The supervisor's lines say what belongs to it. A line can be lost with its process or its
machine, so everything that ranks wrote is assigned to an invocation too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.ledger.journal.digest import StepBlocks
from penstock.ledger.journal.events import (
    ABSENT,
    AttemptFailed,
    AttemptLaunched,
    CheckpointAdopted,
    InvocationEnded,
    InvocationStarted,
    PauseEnded,
    ReplicaGone,
    RunPaused,
)
from penstock.ledger.journal.events_file import FileEvents
from penstock.ledger.journal.follow import (
    AttemptSteps,
    JournalReader,
    garbage_collection_paused,
    reader_of,
)
from penstock.ledger.journal.read import JournalLine
from penstock.ledger.journal.records import JournalFile
from penstock.ledger.journal.steps import LeastExchange, StepColumns, read_columns
from penstock.ledger.journal.values import unix_s, whole

MOST_RANKS = 10**7  # a number beyond it in a damaged line is not a rank
_OF_AN_INVOCATION = (AttemptLaunched, AttemptFailed, InvocationEnded)


@dataclass(frozen=True)
class AttemptFault:
    """The fault that ended an attempt. `since` is when work stopped: a hang is noticed later
    (`t`)."""

    t: float
    since: float
    attempt: int | None
    rank: int | None
    reason: str


@dataclass(frozen=True)
class Pause:
    """A time in which the run waited for a better hour, with no rank at work."""

    start: float
    end: float


@dataclass(frozen=True)
class RankLoss:
    """Ranks that an attempt lost and went on without; each is back with its next `ready`."""

    t: float
    attempt: int
    ranks: range


@dataclass
class Attempt:
    """The records of one attempt's ranks. Steps stay on disk: those of a long run may not fit in
    memory."""

    number: int
    highest_before: int  # the highest step that an earlier attempt had finished on any rank
    events_by_file: dict[JournalFile, FileEvents] = field(default_factory=dict)
    steps_done: AttemptSteps = field(
        default_factory=lambda: AttemptSteps({}, LeastExchange(), exact=True)
    )
    losses: list[RankLoss] = field(default_factory=list)
    launched: float | None = None
    ranks: int | None = None  # that it was launched with

    @property
    def highest(self) -> int:
        """The highest step that this attempt finished."""
        return max((blocks.highest for blocks in self.steps_done.blocks.values()), default=-1)

    @property
    def first(self) -> float:
        """The time of its first record."""
        firsts = [records.first for records in self._wrote()]
        return min(firsts, default=float("inf"))

    @property
    def last(self) -> float:
        """The time of its last record."""
        lasts = [records.last for records in self._wrote()]
        return max(lasts, default=float("-inf"))

    def _wrote(self) -> list[FileEvents | StepBlocks]:
        return [*self.events_by_file.values(), *self.steps_done.blocks.values()]

    @property
    def begin(self) -> float:
        """The time when it took over from the attempt before it."""
        return self.first if self.launched is None else self.launched

    def ranges(self) -> list[range]:
        """Return the ranges of ranks that it wrote for."""
        parts = [
            line.ranks
            for events in self.events_by_file.values()
            if events.has_partial_ranks
            for line in events.events
        ]
        wrote = [file.ranks for file in (*self.events_by_file, *self.steps_done.blocks)]
        return parts + wrote + [loss.ranks for loss in self.losses]

    def steps(self, file: JournalFile) -> StepColumns:
        """Read the steps of one of its files."""
        return read_columns(file.path, self.highest_before)


@dataclass(frozen=True)
class Invocation:
    """One `penstock train` process; `result` is None when it was killed or still runs."""

    start: float
    end: float
    result: str | None
    ranks: int
    attempts: tuple[int, ...]
    faults: tuple[AttemptFault, ...]
    pauses: tuple[Pause, ...] = ()  # in order

    @property
    def window_s(self) -> float:
        """The wall-clock time to explain, in seconds."""
        return self.end - self.start

    def fault_of(self, attempt: int) -> AttemptFault | None:
        """Return the first fault of an attempt: the others are its consequences."""
        faults = [fault for fault in self.faults if fault.attempt == attempt]
        return min(faults, key=lambda fault: fault.since, default=None)


History = list[tuple[Invocation, list[Attempt]]]  # every one with its attempts in order


@dataclass
class _InvocationDraft:
    """An invocation while its lines are read."""

    start: float
    ranks: int = 0
    launched: dict[int, float] = field(default_factory=dict)
    sizes: dict[int, int | None] = field(default_factory=dict)  # ranks of the attempts
    faults: list[AttemptFault] = field(default_factory=list)
    losses: list[RankLoss] = field(default_factory=list)
    paused: list[tuple[float, float | None]] = field(default_factory=list)  # None: no end is known
    ended_t: float | None = None
    result: str | None = None
    last: float = float("-inf")
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.ended_t is not None

    def end_pause(self, t: float) -> None:
        if self.paused and self.paused[-1][1] is None:
            self.paused[-1] = (self.paused[-1][0], t)

    def mentioned(self) -> set[int]:
        return {*self.launched, *(f.attempt for f in self.faults if f.attempt is not None)}


def read_history(folder: Path | str, now: float | None = None, quick: bool = False) -> History:
    """Read the history from a journal; `now` ends the last invocation if it still runs.

    `quick`: steps that would take long to read are taken from their rollups, for now.
    """
    reader = reader_of(folder)
    with reader.lock, garbage_collection_paused():
        files = reader.refresh()
        drafts = _drafts(reader.supervisor_events())
        mentioned = {number for draft in drafts for number in draft.mentioned()}
        attempts = _attempts(reader, files, mentioned, quick)
    if not drafts:  # the supervisor's file is lost: what the ranks wrote is one invocation
        attempts = [attempt for attempt in attempts if attempt.first < float("inf")]
        drafts = [_InvocationDraft(min(attempt.first for attempt in attempts))] if attempts else []
    for attempt in attempts:
        owner = _owner(attempt, drafts)
        owner.attempts.append(attempt)
        attempt.launched = owner.launched.get(attempt.number)
        attempt.ranks = owner.sizes.get(attempt.number)
        attempt.losses = [loss for loss in owner.losses if loss.attempt == attempt.number]
    nexts: list[float | None] = [draft.start for draft in drafts[1:]]
    return [
        (_invocation(draft, upto, now), draft.attempts)
        for draft, upto in zip(drafts, [*nexts, None][: len(drafts)], strict=True)
    ]


def _drafts(lines: list[JournalLine]) -> list[_InvocationDraft]:
    """Split the supervisor's lines where an invocation starts."""
    drafts: list[_InvocationDraft] = []
    for line in lines:
        event = line.event
        if isinstance(event, CheckpointAdopted):
            continue  # by a command between two invocations
        if isinstance(event, InvocationStarted):
            drafts.append(_InvocationDraft(line.t, whole(event.ranks) or 0))
        elif isinstance(event, _OF_AN_INVOCATION) and (not drafts or drafts[-1].ended):
            drafts.append(_InvocationDraft(line.t))  # its first line is lost
        if not drafts:
            continue
        draft = drafts[-1]
        draft.last = max(draft.last, line.t)
        match event:
            case AttemptLaunched() if line.attempt is not None:
                draft.launched.setdefault(line.attempt, line.t)
                draft.sizes.setdefault(line.attempt, whole(event.ranks))
                draft.end_pause(line.t)  # its own line may be lost
            case AttemptFailed():
                draft.faults.append(_fault(line, event, draft))
            case ReplicaGone() if loss := _loss(line, event):
                draft.losses.append(loss)
            case RunPaused():
                draft.paused.append((line.t, None))
            case PauseEnded():
                draft.end_pause(line.t)
            case InvocationEnded(result=result):
                draft.ended_t = line.t
                draft.result = None if result is ABSENT or result is None else str(result)
    return drafts


def _fault(line: JournalLine, event: AttemptFailed, draft: _InvocationDraft) -> AttemptFault:
    latest = max(draft.launched, default=None)
    since = unix_s(event.since)
    return AttemptFault(
        line.t,
        line.t if since is None else since,
        latest if line.attempt is None else line.attempt,
        whole(event.rank),
        "" if event.reason is ABSENT else str(event.reason),
    )


def _loss(line: JournalLine, event: ReplicaGone) -> RankLoss | None:
    """Return the loss in a line; None if it does not say which ranks and which attempt."""
    since = unix_s(event.since)
    match event.ranks, line.attempt:
        case [int(first), int(last)], int(attempt) if 0 <= first <= last < MOST_RANKS:
            return RankLoss(line.t if since is None else since, attempt, range(first, last + 1))
    return None


def _attempts(
    reader: JournalReader, files: list[JournalFile], mentioned: set[int], quick: bool
) -> list[Attempt]:
    """Return all attempts in order: those that wrote, and those that died before they could."""
    of_attempts: dict[int, list[JournalFile]] = {number: [] for number in mentioned}
    for file in files:
        of_attempts.setdefault(file.attempt, []).append(file)
    attempts: list[Attempt] = []
    highest = -1
    for number in sorted(of_attempts):
        attempt = Attempt(number, highest_before=highest)
        attempt.events_by_file = {
            f: reader.events_of(f) for f in of_attempts[number] if f.kind == "events"
        }
        # Rollups repeat the steps, and curves say nothing about time.
        steps = [file for file in of_attempts[number] if file.kind == "steps"]
        attempt.steps_done = reader.steps(number, steps, highest, quick)
        highest = max(highest, attempt.highest)
        attempts.append(attempt)
    return attempts


def _owner(attempt: Attempt, drafts: list[_InvocationDraft]) -> _InvocationDraft:
    """Return the invocation that mentions the attempt, or the latest that had begun by then."""
    named = [draft for draft in drafts if attempt.number in draft.mentioned()]
    begun = [draft for draft in drafts if draft.start <= attempt.first]
    return named[0] if named else begun[-1] if begun else drafts[0]


def _invocation(draft: _InvocationDraft, upto: float | None, now: float | None) -> Invocation:
    """Finish a draft. `upto` is the start of the next invocation: this one was over by then."""
    if draft.ended_t is not None:
        end = draft.ended_t
    elif upto is None and now is not None:
        end = now
    else:
        last = max([draft.last, *(attempt.last for attempt in draft.attempts)])
        end = last if upto is None else min(last, upto)
    seen = max((r.stop for a in draft.attempts for r in a.ranges()), default=0)
    return Invocation(
        draft.start,
        max(draft.start, end),
        draft.result,
        max(1, draft.ranks, seen),  # a rank that wrote was there
        tuple(attempt.number for attempt in draft.attempts),
        tuple(draft.faults),
        tuple(_pauses(draft, max(draft.start, end))),
    )


def _pauses(draft: _InvocationDraft, end: float) -> Iterator[Pause]:
    """Yield the pauses of an invocation; one whose end is not on record lasts to its end."""
    at = draft.start
    for start, over in sorted(draft.paused, key=lambda one: one[0]):
        start, over = max(at, start), min(end if over is None else over, end)
        if over > start:
            yield Pause(start, over)
            at = over
