"""Step columns: which steps were done again, and the least that any rank spent in a collective.

Everything here works on whole arrays; a long run has millions of steps per rank.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.read import read_steps
from penstock.ledger.journal.values import LATEST_S

MEASURED_PARTS = ("fetch", "compute", "exchange", "bubble")


@dataclass(frozen=True)
class StepColumns:
    """The steps of one rank in one attempt, in the order they were written, in seconds."""

    number: np.ndarray
    start: np.ndarray
    total: np.ndarray
    inside: dict[str, np.ndarray]  # the measured parts of total, by their field names
    redo: np.ndarray  # done before, by an earlier attempt or earlier in this one

    @property
    def end(self) -> np.ndarray:
        return self.start + self.total

    def where(self, chosen: np.ndarray) -> "StepColumns":
        """Return some of the steps."""
        inside = {name: seconds[chosen] for name, seconds in self.inside.items()}
        columns = (self.number[chosen], self.start[chosen], self.total[chosen])
        return StepColumns(*columns, inside, self.redo[chosen])


@dataclass
class LeastExchange:
    """The least time that any rank spent in the collectives of each step, for steps in order.

    A step that is done again does not count here.
    """

    number: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.empty(0))
    _summed: np.ndarray | None = None

    def least_for(self, number: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return the least for each of these steps; `own` for a step that is not known.

        A running rank may write more steps between two reads.
        """
        place = np.searchsorted(self.number, number)
        known = place < len(self.number)
        known[known] = self.number[place[known]] == number[known]
        least = own.copy()
        least[known] = np.minimum(own[known], self.seconds[place[known]])
        return least

    @property
    def cumulative(self) -> np.ndarray:
        """The seconds of all steps before each of them, and of all."""
        if self._summed is None:
            self._summed = np.concatenate([[0.0], np.cumsum(self.seconds)])
        return self._summed

    def merge_rank(self, number: np.ndarray, seconds: np.ndarray) -> None:
        """Add some steps of one more rank, each number once and in order."""
        if not len(number):
            return
        self._summed = None
        place = int(np.searchsorted(self.number, number[0]))
        there = self.number[place : place + len(number)]
        if not np.array_equal(there, number[: len(there)]):
            self._mix(number, seconds)
            return
        # The ordinary case: all ranks do the same steps, and the first to be read adds new ones.
        known = self.seconds[place : place + len(there)]
        np.minimum(known, seconds[: len(there)], out=known)
        if len(there) < len(number):
            self.number = np.concatenate([self.number, number[len(there) :]])
            self.seconds = np.concatenate([self.seconds, seconds[len(there) :]])

    def _mix(self, number: np.ndarray, seconds: np.ndarray) -> None:
        every = np.union1d(number, self.number)
        least = np.full(len(every), np.inf)
        # Neither side has a number twice, so plain indexing reaches each entry once.
        for some, theirs in ((self.number, self.seconds), (number, seconds)):
            place = np.searchsorted(every, some)
            least[place] = np.minimum(least[place], theirs)
        self.number, self.seconds = every, least


def read_columns(path: Path, highest_before: int) -> StepColumns:
    """Read a `.steps` file as columns, without impossible records.

    A step is done again if an earlier attempt had finished its number or a higher one
    (`highest_before`), or if this attempt had: a rollback continues in the same process.
    """
    records = read_steps(path)
    records = records[plausible(records)]
    number = records["step"].astype(np.int64)
    before = np.concatenate([[highest_before], number[:-1]])[: len(number)]
    return StepColumns(
        number,
        records["start"],
        as_doubles(records["total"]),
        {name: positive_seconds(records[name]) for name in MEASURED_PARTS},
        redo=number <= np.maximum.accumulate(before),
    )


def concatenate(parts: list[StepColumns]) -> StepColumns:
    """Join the steps of several files, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return StepColumns(
        np.concatenate([np.empty(0, np.int64), *(p.number for p in parts)]),
        np.concatenate([np.empty(0), *(p.start for p in parts)]),
        np.concatenate([np.empty(0), *(p.total for p in parts)]),
        {n: np.concatenate([np.empty(0), *(p.inside[n] for p in parts)]) for n in MEASURED_PARTS},
        np.concatenate([np.empty(0, bool), *(p.redo for p in parts)]),
    )


def plausible(records: np.ndarray) -> np.ndarray:
    """Return which records are possible: a machine's crash may leave garbage. NaN compares
    false."""
    total = as_doubles(records["total"])
    found: np.ndarray = (np.abs(records["start"]) <= LATEST_S) & (total >= 0) & (total <= LATEST_S)
    return found


def as_doubles(seconds: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # garbage may be a signalling NaN
        return seconds.astype(np.float64)


def positive_seconds(seconds: np.ndarray) -> np.ndarray:
    """Return doubles of zero or more; anything that is not a number of seconds becomes zero."""
    wide = as_doubles(seconds)
    return np.where((wide > 0) & (wide <= LATEST_S), wide, 0.0)
