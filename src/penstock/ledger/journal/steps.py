"""Steps as columns: which were done again, and the least that any rank spent in a collective.

Everything here works on whole arrays; a long run has millions of steps per rank.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.read import LATEST_S, read_steps

INSIDE = ("fetch", "compute", "exchange", "bubble")


@dataclass(frozen=True)
class Steps:
    """The steps of one rank in one attempt, in the order they were written, in seconds."""

    number: np.ndarray
    start: np.ndarray
    total: np.ndarray
    inside: dict[str, np.ndarray]  # the measured parts of total, by their field names
    redo: np.ndarray  # done before, by an earlier attempt or earlier in this one

    @property
    def end(self) -> np.ndarray:
        return self.start + self.total

    def where(self, chosen: np.ndarray) -> "Steps":
        """Some of them."""
        inside = {name: seconds[chosen] for name, seconds in self.inside.items()}
        columns = (self.number[chosen], self.start[chosen], self.total[chosen])
        return Steps(*columns, inside, self.redo[chosen])


@dataclass
class LeastExchange:
    """The least time that any rank spent in the collectives of a step, for steps in order.

    A step that is redone has no peers to wait for here.
    """

    number: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.empty(0))
    _summed: np.ndarray | None = None

    def at(self, number: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The least for each of these steps; one's `own` for a step that was not taken in.

        A running rank writes on between the reading that took the steps in and this one.
        """
        place = np.searchsorted(self.number, number)
        known = place < len(self.number)
        known[known] = self.number[place[known]] == number[known]
        least = own.copy()
        least[known] = np.minimum(own[known], self.seconds[place[known]])
        return least

    @property
    def summed(self) -> np.ndarray:
        """The seconds of all steps before each of them, and of all."""
        if self._summed is None:
            self._summed = np.concatenate([[0.0], np.cumsum(self.seconds)])
        return self._summed

    def take(self, number: np.ndarray, seconds: np.ndarray) -> None:
        """Some steps of one more rank, each number once and in order."""
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


def read_columns(path: Path, highest_before: int) -> Steps:
    """A `.steps` file as columns, without what cannot have been a step of this world.

    A step is done again when an earlier attempt had finished its number or a higher one
    (`highest_before`), or when this attempt had: a rollback goes on in the same process.
    """
    records = read_steps(path)
    records = records[sane_ones(records)]
    number = records["step"].astype(np.int64)
    before = np.concatenate([[highest_before], number[:-1]])[: len(number)]
    return Steps(
        number,
        records["start"],
        doubles(records["total"]),
        {name: positive(records[name]) for name in INSIDE},
        redo=number <= np.maximum.accumulate(before),
    )


def joined(parts: list[Steps]) -> Steps:
    """The steps of several files, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Steps(
        np.concatenate([np.empty(0, np.int64), *(p.number for p in parts)]),
        np.concatenate([np.empty(0), *(p.start for p in parts)]),
        np.concatenate([np.empty(0), *(p.total for p in parts)]),
        {n: np.concatenate([np.empty(0), *(p.inside[n] for p in parts)]) for n in INSIDE},
        np.concatenate([np.empty(0, bool), *(p.redo for p in parts)]),
    )


def sane_ones(records: np.ndarray) -> np.ndarray:
    """After a crash of the machine a file may end in garbage; NaN compares false."""
    total = doubles(records["total"])
    found: np.ndarray = (np.abs(records["start"]) <= LATEST_S) & (total >= 0) & (total <= LATEST_S)
    return found


def doubles(seconds: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # garbage may be a signalling NaN
        return seconds.astype(np.float64)


def positive(seconds: np.ndarray) -> np.ndarray:
    """Doubles of zero or more; what is not a number of seconds explains nothing."""
    wide = doubles(seconds)
    return np.where((wide > 0) & (wide <= LATEST_S), wide, 0.0)
