"""Steps as columns: which were done again, and the least that any rank spent in a collective.

Everything here works on whole arrays; a long run has millions of steps per rank.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.readers import LATEST_S, read_steps

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


@dataclass(frozen=True)
class LeastExchange:
    """The least time that any rank spent in the collectives of a step, for steps in order."""

    number: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.empty(0))

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

    def taking(self, steps: Steps) -> "LeastExchange":
        """With the steps of one more file. A step that is redone has no peers to wait for here."""
        number, seconds = steps.number[~steps.redo], steps.inside["exchange"][~steps.redo]
        if np.array_equal(number, self.number):
            return LeastExchange(number, np.minimum(seconds, self.seconds))
        every = np.union1d(number, self.number)
        least = np.full(len(every), np.inf)
        # Neither side has a number twice, so plain indexing reaches each entry once.
        for some, theirs in ((self.number, self.seconds), (number, seconds)):
            place = np.searchsorted(every, some)
            least[place] = np.minimum(least[place], theirs)
        return LeastExchange(every, least)


def read_columns(path: Path, highest_before: int) -> Steps:
    """A `.steps` file as columns, without what cannot have been a step of this world.

    A step is done again when an earlier attempt had finished its number or a higher one
    (`highest_before`), or when this attempt had: a rollback goes on in the same process.
    """
    records = read_steps(path)
    start, total = records["start"], _doubles(records["total"])
    # After a crash of the machine a file may end in garbage; NaN compares false.
    sane = (np.abs(start) <= LATEST_S) & (total >= 0) & (total <= LATEST_S)
    if not sane.all():
        records, start, total = records[sane], start[sane], total[sane]
    number = records["step"].astype(np.int64)
    before = np.concatenate([[highest_before], number[:-1]])[: len(number)]
    return Steps(
        number,
        start,
        total,
        {name: _positive(records[name]) for name in INSIDE},
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


def _doubles(seconds: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # garbage may be a signalling NaN
        return seconds.astype(np.float64)


def _positive(seconds: np.ndarray) -> np.ndarray:
    """Doubles of zero or more; what is not a number of seconds explains nothing."""
    wide = _doubles(seconds)
    return np.where((wide > 0) & (wide <= LATEST_S), wide, 0.0)
