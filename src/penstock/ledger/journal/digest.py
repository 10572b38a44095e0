"""Digest of a `.steps` file: some hundred blocks, updated from its new bytes alone.

A block is some consecutive steps with their sums. Short files have blocks of one step. Two things
are kept separately because sums lose them: records that contradict each other (`regular` is false,
and readers must read the steps themselves), and the time that a step's peers spent in collectives
(the step numbers are kept as runs, to look it up).
"""

import os
from dataclasses import dataclass

import numpy as np

from penstock.ledger.journal.records import CLOCK_ROUNDING_S, HEADER, STEP, JournalFile
from penstock.ledger.journal.steps import (
    MEASURED_PARTS,
    LeastExchange,
    as_doubles,
    plausible,
    positive_seconds,
)
from penstock.ledger.journal.tail import FileTail, check_first_bytes
from penstock.ledger.journal.values import LATEST_S

MOST_BLOCKS = 512
MOST_RUNS = 1024
CHUNK = 1 << 15  # records at a time, so that the columns stay in the processor's cache
# Shares of steps in a block may differ by this much before it matters to a sum of products.
EVEN = 0.005
COLUMNS = ("start", "end", "steps", *MEASURED_PARTS, "whole", "kept", "redo", "fresh")
_C = {name: place for place, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class StepBlocks:
    """The steps of a file as they were read at one moment."""

    rows: np.ndarray  # [blocks, COLUMNS]: unix seconds, counts, and sums of seconds
    least: np.ndarray  # by block, the least seconds of any rank in the collectives of its steps
    regular: bool
    highest: int
    first: float
    last: float

    def column(self, name: str) -> np.ndarray:
        """Return one column of all blocks."""
        found: np.ndarray = self.rows[:, _C[name]]
        return found


class FileReplaced(Exception):
    """A file that was replaced by another: results from its steps are no longer valid."""


class StepDigest:
    """The digest of one file in one attempt; steps up to `highest_before` were done before."""

    def __init__(self, file: JournalFile, highest_before: int) -> None:
        self.file = file
        self.tail = FileTail(file.path)
        self._rows = np.empty((0, len(COLUMNS)))
        self._runs: list[list[int]] = []
        self._steps = 0
        self._per_block = 1
        self._highest = -1
        self._passed = highest_before  # with those before it
        self._latest_start, self._end = float("-inf"), float("-inf")
        self._first = float("inf")
        self._regular = True

    def read(self, stat: os.stat_result, least: LeastExchange) -> None:
        """Read what is new; `least` belongs to the attempt. Raises `FileReplaced`."""
        anew, found = self.tail.read_new(stat)
        if anew:
            raise FileReplaced
        skip = 0 if self.tail.read_bytes else HEADER.size
        if len(found) < skip:
            self.tail.consume(found, 0)
            return
        if skip:
            check_first_bytes(self.tail, found, "steps")
        count = (len(found) - skip) // STEP.itemsize
        records = np.frombuffer(found, STEP, count, offset=skip)
        self.tail.consume(found, skip + count * STEP.itemsize)
        self._per_block = max(self._per_block, -(-2 * (self._steps + count) // MOST_BLOCKS))
        for at in range(0, count, CHUNK):
            self._take(records[at : at + CHUNK], least)

    def blocks(self, least: LeastExchange) -> StepBlocks:
        """Return the blocks as of the last read."""
        regular = self._regular and len(self._runs) <= MOST_RUNS
        shared = self._least(least) if regular else np.zeros(len(self._rows))
        return StepBlocks(self._rows, shared, regular, self._highest, self._first, self._end)

    def _least(self, least: LeastExchange) -> np.ndarray:
        if not self._runs:
            return np.zeros(len(self._rows))
        number, counts = np.array(self._runs, np.int64).T
        summed = least.cumulative
        place = np.searchsorted(least.number, number)  # a run's steps stand there side by side
        of_runs = summed[place + counts] - summed[place]
        ends = np.cumsum(counts)
        bounds = np.concatenate([[0], np.cumsum(self._rows[:, _C["fresh"]])]).astype(np.int64)
        run = np.minimum(np.searchsorted(ends, bounds), len(counts) - 1)
        inside = summed[place[run] + bounds - (ends - counts)[run]] - summed[place[run]]
        found: np.ndarray = np.diff((np.cumsum(of_runs) - of_runs)[run] + inside)
        return found

    def _take(self, records: np.ndarray, least: LeastExchange) -> None:
        start = np.ascontiguousarray(records["start"])
        total, *inside = (as_doubles(records[name]) for name in ("total", *MEASURED_PARTS))
        if not (_sane(start, -LATEST_S) and all(_sane(column) for column in (total, *inside))):
            self._regular, records = False, records[plausible(records)]
            if not len(records):
                return
            start, total = np.ascontiguousarray(records["start"]), as_doubles(records["total"])
            inside = [positive_seconds(records[name]) for name in MEASURED_PARTS]
        end = start + total
        gap = start - np.concatenate([[self._end], end[:-1]])
        kept = total if gap.min() >= 0 else np.maximum(total + np.minimum(gap, 0.0), 0.0)
        explained = inside[0] + inside[1] + inside[2] + inside[3]
        whole = total if (explained <= total).all() else np.maximum(total, explained)
        self._check(start, total, gap, whole)
        self._add(start, end, inside, whole, kept, self._fresh(records["step"], inside, least))
        self._first = min(self._first, float(start.min()))
        self._end = max(self._end, float(end.max()))
        self._highest = max(self._highest, int(records["step"].max()))

    def _check(
        self, start: np.ndarray, total: np.ndarray, gap: np.ndarray, whole: np.ndarray
    ) -> None:
        """Check that the steps are in order and that their parts fit into them."""
        overlap = -float(gap.min())
        shortest = float(total.min())
        ordered = shortest > CLOCK_ROUNDING_S or bool((start[1:] >= start[:-1]).all())
        uneven = overlap > EVEN * shortest and bool((-gap > EVEN * total).any())
        if whole is not total:
            uneven = uneven or bool((whole - total > EVEN * total).any())
        fine = ordered and overlap <= CLOCK_ROUNDING_S and not uneven
        self._regular = self._regular and fine and start[0] >= self._latest_start
        self._latest_start = max(self._latest_start, float(start[-1]))

    def _fresh(
        self, steps: np.ndarray, inside: list[np.ndarray], least: LeastExchange
    ) -> np.ndarray | None:
        """Return which steps are new; None if all are, without a gap."""
        exchange, first, count = inside[MEASURED_PARTS.index("exchange")], int(steps[0]), len(steps)
        row = int(steps[-1]) - first == count - 1 and bool((steps[1:] > steps[:-1]).all())
        if row and first > self._passed:
            self._run(first, count)
            self._passed = first + count - 1
            least.merge_rank(np.arange(first, first + count), exchange)
            return None
        number = steps.astype(np.int64)
        before = np.maximum.accumulate(np.concatenate([[self._passed], number]))
        self._passed = int(before[-1])
        fresh: np.ndarray = number > before[:-1]
        found = number[fresh]
        least.merge_rank(found, exchange[fresh])
        breaks = np.flatnonzero(np.diff(found) != 1) + 1
        if len(breaks) <= MOST_RUNS:
            for run in np.split(found, breaks):
                self._run(int(run[0]) if len(run) else 0, len(run))
        else:
            self._regular = False
        return fresh

    def _run(self, first: int, count: int) -> None:
        if self._runs and sum(self._runs[-1]) == first:
            self._runs[-1][1] += count
        elif count and len(self._runs) <= MOST_RUNS:
            self._runs.append([first, count])

    def _add(
        self,
        start: np.ndarray,
        end: np.ndarray,
        inside: list[np.ndarray],
        whole: np.ndarray,
        kept: np.ndarray,
        fresh: np.ndarray | None,
    ) -> None:
        """Append blocks; enlarge all blocks when there are too many."""
        cuts = np.arange(0, len(start), self._per_block)
        rows = np.zeros((len(cuts), len(COLUMNS)))
        rows[:, _C["start"]] = start[cuts]
        rows[:, _C["end"]] = end[np.append(cuts[1:], len(end)) - 1]
        rows[:, _C["steps"]] = np.diff(np.append(cuts, len(start)))
        sums = dict(zip((*MEASURED_PARTS, "whole", "kept"), (*inside, whole, kept), strict=True))
        if fresh is None:
            rows[:, _C["fresh"]] = rows[:, _C["steps"]]
        else:
            sums = {name: column * fresh for name, column in sums.items()}
            sums |= {"redo": kept * ~fresh, "fresh": fresh * 1.0}
        for name, column in sums.items():
            rows[:, _C[name]] = _sums(column, self._per_block)
        self._steps += len(start)
        self._rows = np.concatenate([self._rows, rows])
        if len(self._rows) > MOST_BLOCKS:
            self._per_block = max(2 * self._per_block, -(-2 * self._steps // MOST_BLOCKS))
            self._rows = _coarser(self._rows, self._per_block)


def _sums(column: np.ndarray, each: int) -> np.ndarray:
    """Return the sums of every `each` numbers; the last may be of fewer."""
    whole = len(column) // each * each
    found = column[:whole].reshape(-1, each).sum(axis=1)
    return found if whole == len(column) else np.append(found, column[whole:].sum())


def _coarser(rows: np.ndarray, per_block: int) -> np.ndarray:
    """Return the same sums in blocks of about `per_block` steps."""
    before = np.cumsum(rows[:, 2]) - rows[:, 2]
    group = before // per_block
    cuts = np.flatnonzero(np.diff(group, prepend=-1))
    made = np.add.reduceat(rows, cuts, axis=0)
    made[:, 0] = rows[cuts, 0]
    made[:, 1] = rows[np.append(cuts[1:], len(rows)) - 1, 1]
    return made


def _sane(column: np.ndarray, low: float = 0.0) -> bool:
    """Return whether all values are possible; NaN compares false."""
    return bool(column.min() >= low and column.max() <= LATEST_S)
