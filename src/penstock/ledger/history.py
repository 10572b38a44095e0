"""The facts of a run, gathered from its journal: invocations, their attempts, their faults.

An invocation is one `penstock train` process; its window is the time that the ledger has to
explain. The supervisor's lines say what belongs to it. A line can be lost with its process or its
machine, so whatever the ranks wrote finds an invocation too.
"""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.ledger.journal.digest import Blocks
from penstock.ledger.journal.events_file import Told
from penstock.ledger.journal.follow import Done, Reader, no_collecting, reader_of
from penstock.ledger.journal.read import Event
from penstock.ledger.journal.records import JournalFile
from penstock.ledger.journal.steps import LeastExchange, Steps, read_columns

MOST_RANKS = 10**7  # a number beyond it in a damaged line is not a rank


@dataclass(frozen=True)
class Fault:
    """What ended an attempt. `since` is when work stopped: a hang is noticed later (`t`)."""

    t: float
    since: float
    attempt: int | None
    rank: int | None
    reason: str


@dataclass(frozen=True)
class Loss:
    """Ranks that an attempt lost and went on without; each is there again with its next `ready`."""

    t: float
    attempt: int
    ranks: range


@dataclass
class Attempt:
    """What the ranks of one attempt wrote. Steps stay on disk: a long run's may not fit here."""

    number: int
    highest_before: int  # the highest step that an earlier attempt had finished on any rank
    told: dict[JournalFile, Told] = field(default_factory=dict)
    done: Done = field(default_factory=lambda: Done({}, LeastExchange(), exact=True))
    losses: list[Loss] = field(default_factory=list)
    launched: float | None = None

    @property
    def highest(self) -> int:
        """The highest step that it finished itself."""
        return max((blocks.highest for blocks in self.done.blocks.values()), default=-1)

    @property
    def first(self) -> float:
        """Of all that it wrote."""
        firsts = [one.first for one in self._wrote()]
        return min(firsts, default=float("inf"))

    @property
    def last(self) -> float:
        lasts = [one.last for one in self._wrote()]
        return max(lasts, default=float("-inf"))

    def _wrote(self) -> list[Told | Blocks]:
        return [*self.told.values(), *self.done.blocks.values()]

    @property
    def begin(self) -> float:
        """When it took over from the attempt before it."""
        return self.first if self.launched is None else self.launched

    def ranges(self) -> list[range]:
        """The ranges of ranks that it wrote for."""
        parts = [e.ranks for told in self.told.values() if told.parts for e in told.events]
        wrote = [file.ranks for file in (*self.told, *self.done.blocks)]
        return parts + wrote + [loss.ranks for loss in self.losses]

    def steps(self, file: JournalFile) -> Steps:
        """The steps of one of its files."""
        return read_columns(file.path, self.highest_before)


@dataclass(frozen=True)
class Invocation:
    """One `penstock train` process; `result` is None when it was killed or still runs."""

    start: float
    end: float
    result: str | None
    ranks: int
    attempts: tuple[int, ...]
    faults: tuple[Fault, ...]

    @property
    def window_s(self) -> float:
        """The wall-clock time to explain."""
        return self.end - self.start

    def fault_of(self, attempt: int) -> Fault | None:
        """The first fault of an attempt: the others are its consequences."""
        faults = [fault for fault in self.faults if fault.attempt == attempt]
        return min(faults, key=lambda fault: fault.since, default=None)


History = list[tuple[Invocation, list[Attempt]]]  # every one with its attempts in order


@dataclass
class _Draft:
    """An invocation while it is put together."""

    start: float
    ranks: int = 0
    launched: dict[int, float] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    ended: Event | None = None
    last: float = float("-inf")
    attempts: list[Attempt] = field(default_factory=list)

    def mentioned(self) -> set[int]:
        return {*self.launched, *(f.attempt for f in self.faults if f.attempt is not None)}


def read_history(folder: Path | str, now: float | None = None, quick: bool = False) -> History:
    """What is in the journal; `now` ends the last invocation if it still runs.

    `quick`: steps that would take long to read are told by their rollups, for now.
    """
    reader = reader_of(folder)
    with reader.lock, no_collecting():
        files = reader.look()
        drafts = _drafts(reader.supervisor())
        mentioned = {number for draft in drafts for number in draft.mentioned()}
        attempts = _attempts(reader, files, mentioned, quick)
    if not drafts:  # the supervisor's file is lost: what the ranks wrote is one invocation
        attempts = [attempt for attempt in attempts if attempt.first < float("inf")]
        drafts = [_Draft(min(attempt.first for attempt in attempts))] if attempts else []
    for attempt in attempts:
        owner = _owner(attempt, drafts)
        owner.attempts.append(attempt)
        attempt.launched = owner.launched.get(attempt.number)
        attempt.losses = [loss for loss in owner.losses if loss.attempt == attempt.number]
    nexts: list[float | None] = [draft.start for draft in drafts[1:]]
    return [
        (_invocation(draft, upto, now), draft.attempts)
        for draft, upto in zip(drafts, [*nexts, None][: len(drafts)], strict=True)
    ]


def _drafts(lines: list[Event]) -> list[_Draft]:
    """The supervisor's lines, cut where an invocation starts."""
    drafts: list[_Draft] = []
    for event in lines:
        if event.kind == "adopted":
            continue  # by a command between two invocations
        if event.kind == "invocation":
            drafts.append(_Draft(event.t, event.whole("ranks") or 0))
        elif event.kind in ("launch", "fault", "ended") and (not drafts or drafts[-1].ended):
            drafts.append(_Draft(event.t))  # its first line is lost
        if not drafts:
            continue
        draft = drafts[-1]
        draft.last = max(draft.last, event.t)
        if event.kind == "launch" and event.attempt is not None:
            draft.launched.setdefault(event.attempt, event.t)
        elif event.kind == "fault":
            draft.faults.append(_fault(event, draft))
        elif event.kind == "lost" and (loss := _loss(event)):
            draft.losses.append(loss)
        elif event.kind == "ended":
            draft.ended = event
    return drafts


def _fault(event: Event, draft: _Draft) -> Fault:
    latest = max(draft.launched, default=None)
    since = event.time("since")
    return Fault(
        event.t,
        event.t if since is None else since,
        latest if event.attempt is None else event.attempt,
        event.whole("rank"),
        str(event.payload.get("reason", "")),
    )


def _loss(event: Event) -> Loss | None:
    """A line that does not say whom and when is none."""
    since = event.time("since")
    match event.payload.get("ranks"), event.attempt:
        case [int(first), int(last)], int(attempt) if 0 <= first <= last < MOST_RANKS:
            return Loss(event.t if since is None else since, attempt, range(first, last + 1))
    return None


def _attempts(
    reader: Reader, files: list[JournalFile], mentioned: set[int], quick: bool
) -> list[Attempt]:
    """All attempts in order: those that wrote, and those that died before they could."""
    of_attempts: dict[int, list[JournalFile]] = {number: [] for number in mentioned}
    for file in files:
        of_attempts.setdefault(file.attempt, []).append(file)
    attempts: list[Attempt] = []
    highest = -1
    for number in sorted(of_attempts):
        attempt = Attempt(number, highest_before=highest)
        attempt.told = {f: reader.told(f) for f in of_attempts[number] if f.kind == "events"}
        # Rollups repeat the steps, and curves say nothing about time.
        steps = [file for file in of_attempts[number] if file.kind == "steps"]
        attempt.done = reader.steps(number, steps, highest, quick)
        highest = max(highest, attempt.highest)
        attempts.append(attempt)
    return attempts


def _owner(attempt: Attempt, drafts: list[_Draft]) -> _Draft:
    """The invocation that mentions the attempt, or else the latest that had begun by then."""
    named = [draft for draft in drafts if attempt.number in draft.mentioned()]
    begun = [draft for draft in drafts if draft.start <= attempt.first]
    return named[0] if named else begun[-1] if begun else drafts[0]


def _invocation(draft: _Draft, upto: float | None, now: float | None) -> Invocation:
    """`upto` is the start of the next invocation: this one was over by then."""
    if draft.ended is not None:
        end = draft.ended.t
    elif upto is None and now is not None:
        end = now
    else:
        last = max([draft.last, *(attempt.last for attempt in draft.attempts)])
        end = last if upto is None else min(last, upto)
    seen = max((r.stop for a in draft.attempts for r in a.ranges()), default=0)
    result = draft.ended.payload.get("result") if draft.ended else None
    return Invocation(
        draft.start,
        max(draft.start, end),
        str(result) if result is not None else None,
        max(1, draft.ranks, seen),  # a rank that wrote was there
        tuple(attempt.number for attempt in draft.attempts),
        tuple(draft.faults),
    )
