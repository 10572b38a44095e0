"""The merge: one ledger over all ranks, attempts and invocations of a run.

Causes are computed here, from facts, and not by the writers: only with everything on the table can
a wait turn out to be a hang. The rules, for each invocation's window and each rank in it:

- from the start of the window to the rank's first `ready`, and after its `end`: `startup`
- from a fault (from when a hang began) to the rank's next `ready`: `down`
- a rank that an attempt goes without: `down`
- a pause in dear hours, with no rank at work, and ranks that an hour has no power for: `down`
- in a step: waiting for data, computing and pipeline bubbles as measured; of the time in
  collectives the least of any rank is `communicate` and the rest of one's own is `peer_wait`
- what is inside computing: by the shares of the steps that were traced (`split.py`)
- steps, evaluations and checkpoints that an earlier attempt had already passed: `redo`
- from the last record of an attempt to its fault, the step that was lost: `redo`
- of a rank that an attempt lost and went on without: the same, with `down` until it is back
- of the others, the step that was lost with it: `redo`, and until they work again: `down`
- all the rest: `unexplained`

The causes add up to window × ranks for any journal, torn or damaged: records that overlap or lie
outside are clipped, and `Account.clipped_s` says by how much.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from penstock.ledger.block_records import BlockRecords
from penstock.ledger.causes import Cause
from penstock.ledger.history import Attempt, History, Invocation, read_history
from penstock.ledger.journal.records import JournalFile
from penstock.ledger.journal.steps import concatenate
from penstock.ledger.ledger import Ledger, Provenance
from penstock.ledger.split import ComputeSplits
from penstock.ledger.timeline import (
    AttemptWindow,
    RankRecords,
    RankTimeline,
    idle_timeline,
    rank_timelines,
)

MEASURED = Provenance("measured", "the run's journal")


@dataclass(frozen=True)
class Account:
    """The account of a run's time."""

    ledger: Ledger
    by_rank: list[Ledger]
    invocations: list[Invocation]
    last_step: int | None  # the highest step that was finished
    clipped_s: float  # rank-seconds of records that overlapped others or lay outside the window
    exact: bool = True  # or a first answer from rollups, see `estimate.py`

    @property
    def wall_s(self) -> float:
        """Wall-clock time over all invocations, in seconds."""
        return sum(invocation.window_s for invocation in self.invocations)

    @property
    def ranks(self) -> int:
        """The number of ranks of the last invocation."""
        return self.invocations[-1].ranks if self.invocations else 0

    @property
    def unexplained_share(self) -> float | None:
        """The unexplained share: under 2 % in a healthy run; None if there is no time to
        explain."""
        return self.ledger.share(Cause.UNEXPLAINED)


@dataclass(frozen=True)
class GroupTimeline:
    """The timelines of ranks that wrote the same in one attempt."""

    ranks: range
    timelines: list[RankTimeline]

    def seconds_before(self, t: np.ndarray) -> np.ndarray:
        """Return seconds by cause of each rank before these moments: [moments, causes]."""
        return sum(
            (life.seconds_before(t) for life in self.timelines), np.zeros((len(t), len(Cause)))
        )


def merge(folder: Path | str, now: float | None = None) -> Account:
    """Return the account of the journal in `folder`; `now` means that the last invocation still
    runs."""
    return account_of(read_history(folder, now))


def account_of(history: History, found: Iterable[GroupTimeline] | None = None) -> Account:
    """Return the account of a history, rank by rank; `found` are its timelines if already known."""
    ranks = max((invocation.ranks for invocation, _ in history), default=0)
    seconds = np.zeros((ranks, len(Cause)))
    clipped_s = 0.0
    for line in group_timelines(history) if found is None else found:
        seconds[line.ranks.start : line.ranks.stop] += sum(life.total() for life in line.timelines)
        clipped_s += sum(life.clipped_s for life in line.timelines) * len(line.ranks)
    highest = max((a.highest for _, attempts in history for a in attempts), default=-1)
    return Account(
        ledger=_ledger(seconds.sum(axis=0)),
        by_rank=_ledgers(seconds),
        invocations=[invocation for invocation, _ in history],
        last_step=highest if highest >= 0 else None,
        clipped_s=clipped_s,
        exact=all(a.steps_done.exact for _, attempts in history for a in attempts),
    )


@dataclass(frozen=True)
class IdleTime:
    """A time in which no rank works, and its cause."""

    start: float
    end: float
    cause: Cause


def attempt_windows(
    invocation: Invocation, attempts: list[Attempt]
) -> Iterator[AttemptWindow | IdleTime]:
    """Yield a window for each attempt, in order: from the end of the one before to its own end.

    Pauses, and what is left after the last attempt, are idle times between and behind them.
    """
    at, waiting, absent = invocation.start, Cause.STARTUP, Cause.STARTUP
    pauses = list(invocation.pauses)
    begins = [attempt.begin for attempt in attempts]
    for attempt, next_begin in zip(attempts, [*begins[1:], invocation.end], strict=False):
        while pauses and pauses[0].start <= attempt.begin:
            pause = pauses.pop(0)
            start = min(max(at, pause.start), invocation.end)
            end = min(max(start, pause.end), invocation.end)
            yield IdleTime(at, start, waiting)
            yield IdleTime(start, end, Cause.DOWN)
            at, waiting = end, Cause.STARTUP
        upto = min(next_begin, pauses[0].start) if pauses else next_begin
        fault = invocation.fault_of(attempt.number)
        end = min(max(at, fault.since if fault else upto), invocation.end)
        fewer = attempt.ranks is not None and attempt.ranks < invocation.ranks
        left_out = Cause.DOWN if fewer else absent
        yield AttemptWindow(at, end, fault is not None, waiting, left_out)
        at, waiting, absent = end, Cause.DOWN if fault else Cause.STARTUP, Cause.DOWN
    for pause in pauses:
        start, end = max(at, pause.start), max(at, pause.end)
        yield IdleTime(at, start, waiting)
        yield IdleTime(start, end, Cause.DOWN)
        at, waiting = end, Cause.STARTUP
    # Without any attempt, nothing ever came up; else only a fault leaves time after the last one.
    rest = Cause.DOWN if attempts and not pauses else Cause.STARTUP
    yield IdleTime(at, invocation.end, rest)


def group_timelines(history: History) -> Iterator[GroupTimeline]:
    """Yield every second of every rank, once."""
    for invocation, attempts in history:
        left = iter(attempts)
        for part in attempt_windows(invocation, attempts):
            if isinstance(part, IdleTime):
                idle = idle_timeline(part.start, part.end, part.cause)
                yield GroupTimeline(range(invocation.ranks), [idle])
                continue
            for ranks, found in _groups(next(left), part, invocation.ranks):
                yield GroupTimeline(ranks, found)


def _groups(
    attempt: Attempt, stretch: AttemptWindow, ranks: int
) -> Iterator[tuple[range, list[RankTimeline]]]:
    """Yield the ranks in groups that wrote the same, so that a group is computed once."""
    edges = {edge for r in attempt.ranges() for edge in (r.start, r.stop)}
    cuts = sorted({0, ranks, *edges})
    event_files, files = (
        _spread(list(attempt.events_by_file), cuts),
        _spread(list(attempt.steps_done.blocks), cuts),
    )
    splits = ComputeSplits.of(
        [line for events in attempt.events_by_file.values() for line in events.traces]
    )
    for i, (first, stop) in enumerate(pairwise(cuts)):
        lost = tuple(sorted(loss.t for loss in attempt.losses if first in loss.ranks))
        file_events, shares = (
            [attempt.events_by_file[file] for file in event_files[i]],
            splits.shares(first),
        )
        if (
            len(files[i]) == 1
            and len(file_events) == 1
            and not lost
            and not file_events[0].has_partial_ranks
        ):
            blocks = attempt.steps_done.blocks[files[i][0]]
            source = BlockRecords(
                file_events[0], blocks, files[i][0].path, attempt.highest_before, shares
            )
            if found := source.timeline(stretch, strict=attempt.steps_done.exact):
                yield range(first, stop), [found]
                continue
        events = [event for one in file_events for event in one.events if first in event.ranks]
        steps = concatenate([attempt.steps(file) for file in files[i]])
        least, before = attempt.steps_done.least, attempt.highest_before
        written = RankRecords(events, steps, least, before, lost, shares)
        yield range(first, stop), rank_timelines(stretch, written)


def _spread(items: Sequence[JournalFile], cuts: list[int]) -> defaultdict[int, list[JournalFile]]:
    """Return the files about each group of ranks between two cuts."""
    groups: defaultdict[int, list[JournalFile]] = defaultdict(list)
    for item in items:
        for group in range(bisect_left(cuts, item.ranks.start), bisect_left(cuts, item.ranks.stop)):
            groups[group].append(item)
    return groups


def _ledger(row: np.ndarray) -> Ledger:
    return Ledger(dict(zip(Cause, row.tolist(), strict=True)), provenance={"seconds": MEASURED})


def _ledgers(seconds: np.ndarray) -> list[Ledger]:
    """Return a ledger per rank; ranks with equal rows share one."""
    made: dict[bytes, Ledger] = {}
    return [made.get(key := row.tobytes()) or made.setdefault(key, _ledger(row)) for row in seconds]
