"""What a run reads: fixed-length samples in an endless shuffled order, less a held-out tail.

The batch of a step is a range of positions; ranks take slices of that range. The state of a stream
is one counter and what identifies the order, so that a run resumes at once, exactly, and on any
number of ranks. Of a mixture, a cycle (`mix.py`) says which part each position reads.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.data.read.batch import Batch
from penstock.data.read.dataset import Dataset
from penstock.data.read.legal import refuse_unreadable
from penstock.data.read.mix import MIX, cycle_of
from penstock.data.read.order import Indices
from penstock.data.read.order_choice import Kind
from penstock.data.read.part import Part
from penstock.data.read.sizes import Split, held_out_of
from penstock.errors import PenstockError

State = dict[str, str | int]
Ranges = Iterator[tuple[int, int]]


class Stream:
    """Sample i is tokens[i*S : i*S + S + 1]: inputs are its first S tokens, targets its last S.

    `data` is a dataset, or several with weights. `holdout` is the share of the samples, at the end
    of each dataset, that training never sees. `marks`: batches say where documents begin. `skip`: a
    damaged sample keeps its position and counts nothing, instead of an error.
    """

    def __init__(
        self,
        data: Dataset | Sequence[tuple[Dataset, float]],
        sequence: int,
        seed: int,
        holdout: float,
        order: Kind = "auto",
        marks: bool = False,
        skip: bool = False,
    ) -> None:
        if sequence < 1:
            raise PenstockError(f"sequence is {sequence} tokens; it must be at least 1.")
        if not 0.0 <= holdout < 1.0:
            raise PenstockError(
                f"holdout is {holdout}; it is a share of the samples, from 0 to under 1."
            )
        pairs = [(data, 1.0)] if isinstance(data, Dataset) else list(data)
        refuse_unreadable([(one.manifest, weight) for one, weight in pairs], sequence, holdout)
        self.parts = [Part(dataset, sequence, seed, holdout, order) for dataset, _ in pairs]
        self.weights = [weight for _, weight in pairs]
        self.cycle = cycle_of(self.weights)
        self.sequence = sequence  # tokens
        self.seed = seed
        self.marks, self.skip = marks, skip
        # Of a mixture: all there is. Its parts go through epochs of their own.
        self.samples = sum(part.samples for part in self.parts)
        splits = [Split(part.samples, part.held_out) for part in self.parts]
        self.held_out = held_out_of(splits, self.weights)  # samples

    @property
    def dataset(self) -> Dataset:
        """The dataset, or the first of a mixture: all of them have its tokenizer."""
        return self.parts[0].dataset

    @property
    def vocab(self) -> int:
        return self.dataset.vocab

    @property
    def id(self) -> str:
        return " + ".join(part.dataset.id for part in self.parts)

    @property
    def masked(self) -> bool:
        """Whether a batch may hold tokens that do not count."""
        return self.skip or any(part.dataset.masked for part in self.parts)

    def read(self, start: int, stop: int) -> Batch:
        """Positions [start, stop) of the training order."""
        if not 0 <= start <= stop:
            raise ValueError(f"positions [{start}, {stop}) are not a range")
        if len(self.parts) == 1:
            return self._take([self.parts[0].training(start, stop)])
        which, numbers = self.cycle.at(np.arange(start, stop))
        starts = [
            part.training(*_range_of(numbers[which == i])) for i, part in enumerate(self.parts)
        ]
        return self._take(starts, which)

    def read_held_out(self, start: int, stop: int, of: int | None = None) -> Batch:
        """Held-out samples [start, stop) in storage order; of a mixture, by its weights.

        With `of`, [start, stop) of a selection of that many, spread evenly over all of them: the
        documents at the end of a set are few, and a part of them would be fewer still.
        """
        of = self.held_out if of is None else of
        if not 0 <= start <= stop <= of <= self.held_out:
            raise ValueError(
                f"[{start}, {stop}) of {of} is not within the {self.held_out} held-out samples"
            )
        which, numbers = self.cycle.at(np.arange(start, stop))
        counts = self.cycle.counts(of)
        starts = [
            part.evaluation(numbers[which == i] * part.held_out // max(int(counts[i]), 1))
            for i, part in enumerate(self.parts)
        ]
        return self._take(starts, which)

    def plan_ahead(self, ranges: Ranges) -> None:
        """Tells remote datasets which positions will be read. Not more of `ranges` is used than
        they ask for; each of them does that on a thread of its own."""
        shared = threading.Lock()
        for i, copy in enumerate(itertools.tee(ranges, len(self.parts))):
            self.parts[i].plan_ahead(self._turns(i, Locked(copy, shared)))

    def state(self, consumed: int) -> State:
        """All it takes to go on; `consumed` counts the samples that optimizer steps have used."""
        state: State = {
            "dataset": self.id,
            "order": " + ".join(dict.fromkeys(part.order.name for part in self.parts)),
            "seed": self.seed,
            "sequence": self.sequence,
            "held_out": self.held_out,
            "consumed": consumed,
        }
        if len(self.parts) > 1:
            quotas = ":".join(str(quota) for quota in self.cycle.quotas)
            # What one epoch of a part is decides its order, and the sum above does not tell it.
            held = " + ".join(str(part.held_out) for part in self.parts)
            state |= {"mix": f"{MIX} {quotas}", "held_out": held}
        return state

    def check(self, state: State) -> None:
        """Refuses a state that was saved with another order of samples."""
        here = self.state(consumed=0)
        differs = [
            f"  {name}: saved {state.get(name)!r}, here {here.get(name)!r}"
            for name in {**here, **state}
            if name != "consumed" and state.get(name) != here.get(name)
        ]
        if differs:
            raise PenstockError(
                "The saved run read other data, so its position means nothing here:\n"
                + "\n".join(differs)
                + "\nSet these back to the saved values, or start a new run."
            )
        consumed = state.get("consumed")
        if not isinstance(consumed, int) or consumed < 0:
            raise PenstockError(
                f"The saved position is {consumed!r}; it must be a number of samples, 0 or more. "
                "The state is damaged: resume from another checkpoint."
            )

    def _turns(self, part: int, ranges: Ranges) -> Ranges:
        """The ranges of a part's own samples that ranges of positions read."""
        for start, stop in ranges:
            which, numbers = self.cycle.at(np.arange(start, stop))
            yield _range_of(numbers[which == part])

    def _take(self, starts: list[Indices], which: Indices | None = None) -> Batch:
        """`starts` of each part; `which` says whose turn it is, row after row."""
        taken = [
            part.take(own, self.marks, self.skip)
            for part, own in zip(self.parts, starts, strict=True)
        ]
        if which is None or len(taken) == 1:
            return taken[0]
        tokens = np.empty((len(which), self.sequence + 1), dtype=np.int64)
        loss = np.ones(tokens.shape, dtype=bool) if any(b.loss is not None for b in taken) else None
        marks = np.empty(tokens.shape, dtype=bool) if self.marks else None
        for i, batch in enumerate(taken):
            rows = which == i
            tokens[rows] = batch.tokens
            if loss is not None and batch.loss is not None:
                loss[rows] = batch.loss
            if marks is not None:
                marks[rows] = batch.starts
        return Batch(tokens, loss, marks, tuple(s for batch in taken for s in batch.skipped))


class Locked(Iterator[tuple[int, int]]):
    """An iterator that shares its source with others, on other threads."""

    def __init__(self, source: Ranges, lock: threading.Lock) -> None:
        self._source, self._lock = source, lock

    def __next__(self) -> tuple[int, int]:
        with self._lock:
            return next(self._source)


def _range_of(numbers: Indices) -> tuple[int, int]:
    """A part's samples in a range of positions: without gaps, since none of them is elsewhere."""
    return (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)


def rank_slice(start: int, stop: int, rank: int, ranks: int) -> tuple[int, int]:
    """The part of [start, stop) that `rank` reads: contiguous, sizes within one of each other."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    count = stop - start
    return start + count * rank // ranks, start + count * (rank + 1) // ranks
