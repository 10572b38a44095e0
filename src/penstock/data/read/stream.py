"""The stream of a run: fixed-length samples in an endless shuffled order, and a held-out tail.

The batch of a step is a range of positions; ranks take slices of that range. The state of a stream
is one counter and what identifies the order, so that a run resumes at once, exactly, and on any
number of ranks. In a mixture, a cycle (`mix.py`) says which part each position reads.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from penstock.data.read.batch import Batch
from penstock.data.read.dataset import Dataset
from penstock.data.read.mix import MIX, mixing_cycle
from penstock.data.read.order import Indices
from penstock.data.read.part import StreamPart
from penstock.data.read.samples import (
    OrderKind,
    SampleSplit,
    held_out_samples,
    refuse_unreadable,
)
from penstock.errors import PenstockError

StreamState = dict[str, str | int]
Ranges = Iterator[tuple[int, int]]


class Stream:
    """The samples of a dataset, or of several with weights, as batches.

    Sample i is tokens[i*S : i*S + S + 1]: inputs are its first S tokens, targets its last S.
    `holdout` is the share of the samples, at the end of each dataset, that training never sees.
    `marks`: batches say where documents begin. `skip`: a damaged sample keeps its position and
    does not count in the loss, instead of an error.

    A pair of answers is one sample: S is then the length of both its sequences together.
    """

    def __init__(
        self,
        data: Dataset | Sequence[tuple[Dataset, float]],
        sequence: int,
        seed: int,
        holdout: float,
        order: OrderKind = "auto",
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
        refuse_unreadable([(d.manifest, weight) for d, weight in pairs], sequence, holdout)
        self.parts = [StreamPart(dataset, sequence, seed, holdout, order) for dataset, _ in pairs]
        self.weights = [weight for _, weight in pairs]
        self.cycle = mixing_cycle(self.weights)
        self.sequence = sequence  # tokens
        self.seed = seed
        self.marks, self.skip = marks, skip
        # In a mixture: all there are. Its parts go through their own epochs.
        self.samples = sum(part.samples for part in self.parts)
        splits = [SampleSplit(part.samples, part.held_out) for part in self.parts]
        self.held_out = held_out_samples(splits, self.weights)  # samples

    @property
    def dataset(self) -> Dataset:
        """The dataset, or the first of a mixture: all of them have the same tokenizer."""
        return self.parts[0].dataset

    @property
    def vocab(self) -> int:
        return self.dataset.vocab

    @property
    def id(self) -> str:
        return " + ".join(part.dataset.id for part in self.parts)

    @property
    def pairs(self) -> bool:
        """Whether a sample is a pair of sequences: one chosen, one rejected."""
        return self.dataset.manifest.pairs

    @property
    def row_tokens(self) -> int:
        """Tokens that the model reads as one sequence."""
        return self.sequence // 2 if self.pairs else self.sequence

    @property
    def stored_samples(self) -> int:
        """All samples of all parts, held-out ones included: what `Batch.numbers` count up to."""
        return sum(part.samples + part.held_out for part in self.parts)

    @property
    def masked(self) -> bool:
        """Whether a batch may hold tokens that do not count in the loss."""
        return self.skip or any(part.dataset.masked for part in self.parts)

    def read(self, start: int, stop: int) -> Batch:
        """Return the samples at positions [start, stop) of the training order."""
        if not 0 <= start <= stop:
            raise ValueError(f"positions [{start}, {stop}) are not a range")
        if len(self.parts) == 1:
            return self._read_parts([self.parts[0].training_starts(start, stop)])
        which, numbers = self.cycle.at(np.arange(start, stop))
        starts = [
            part.training_starts(*_range_of(numbers[which == i]))
            for i, part in enumerate(self.parts)
        ]
        return self._read_parts(starts, which)

    def read_held_out(self, start: int, stop: int, of: int | None = None) -> Batch:
        """Return held-out samples [start, stop) in storage order; of a mixture, by its weights.

        With `of`, take [start, stop) of a selection of that many samples, spread evenly over all
        held-out ones: their first part alone would come from very few documents.
        """
        of = self.held_out if of is None else of
        if not 0 <= start <= stop <= of <= self.held_out:
            raise ValueError(
                f"[{start}, {stop}) of {of} is not within the {self.held_out} held-out samples"
            )
        which, numbers = self.cycle.at(np.arange(start, stop))
        counts = self.cycle.counts(of)
        starts = [
            part.held_out_starts(numbers[which == i] * part.held_out // max(int(counts[i]), 1))
            for i, part in enumerate(self.parts)
        ]
        return self._read_parts(starts, which)

    def plan_ahead(self, ranges: Ranges) -> None:
        """Announce to remote datasets which positions will be read.

        `ranges` is consumed only as far as they ask; each of them asks from its own thread.
        """
        shared = threading.Lock()
        for i, copy in enumerate(itertools.tee(ranges, len(self.parts))):
            self.parts[i].plan_ahead(self._part_ranges(i, LockedIterator(copy, shared)))

    def state(self, consumed: int) -> StreamState:
        """Return the state to resume from; `consumed` is the number of samples trained on."""
        state: StreamState = {
            "dataset": self.id,
            "order": " + ".join(dict.fromkeys(part.order.name for part in self.parts)),
            "seed": self.seed,
            "sequence": self.sequence,
            "held_out": self.held_out,
            "consumed": consumed,
        }
        if len(self.parts) > 1:
            quotas = ":".join(str(quota) for quota in self.cycle.quotas)
            # The order of each part depends on its own number of held-out samples, not the sum.
            held = " + ".join(str(part.held_out) for part in self.parts)
            state |= {"mix": f"{MIX} {quotas}", "held_out": held}
        return state

    def check(self, state: StreamState) -> None:
        """Refuse a state that was saved with another order of samples."""
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

    def _part_ranges(self, part: int, ranges: Ranges) -> Ranges:
        """Yield the range of a part's own samples that each range of positions reads."""
        for start, stop in ranges:
            which, numbers = self.cycle.at(np.arange(start, stop))
            yield _range_of(numbers[which == part])

    def _read_parts(self, starts: list[Indices], which: Indices | None = None) -> Batch:
        """Read samples of each part by their starts; `which` is the part of each row."""
        batches = [
            part.read(own, self.marks, self.skip)
            for part, own in zip(self.parts, starts, strict=True)
        ]
        if which is None or len(batches) == 1:
            return replace(batches[0], numbers=starts[0] // self.sequence)
        tokens = np.empty((len(which), self.sequence + 1), dtype=np.int64)
        masked = any(batch.loss is not None for batch in batches)
        loss = np.ones(tokens.shape, dtype=bool) if masked else None
        marks = np.empty(tokens.shape, dtype=bool) if self.marks else None
        numbers, before = np.empty(len(which), np.int64), 0
        for i, batch in enumerate(batches):
            rows = which == i
            numbers[rows] = before + starts[i] // self.sequence
            before += self.parts[i].samples + self.parts[i].held_out
            tokens[rows] = batch.tokens
            if loss is not None and batch.loss is not None:
                loss[rows] = batch.loss
            if marks is not None:
                marks[rows] = batch.starts
        skipped = tuple(s for batch in batches for s in batch.skipped)
        return Batch(tokens, loss, marks, skipped, numbers)

    def read_stored(self, start: int, stop: int) -> Batch:
        """Return samples by their numbers, held-out ones after the others of each part.

        No sample is read twice and none is left out, in contrast to the training order.
        """
        which, own, before = np.empty(stop - start, np.int64), [], 0
        for i, part in enumerate(self.parts):
            count = part.samples + part.held_out
            first, last = max(start - before, 0), min(stop - before, count)
            own.append(np.arange(first, max(first, last)) * self.sequence)
            which[max(before - start, 0) : max(before + count - start, 0)] = i
            before += count
        return self._read_parts(own, which)


class LockedIterator(Iterator[tuple[int, int]]):
    """An iterator that shares its source with iterators on other threads."""

    def __init__(self, source: Ranges, lock: threading.Lock) -> None:
        self._source, self._lock = source, lock

    def __next__(self) -> tuple[int, int]:
        with self._lock:
            return next(self._source)


def _range_of(numbers: Indices) -> tuple[int, int]:
    """Return the range of a part's samples; in a range of positions they have no gaps."""
    return (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)


def rank_slice(start: int, stop: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the slice of [start, stop) that `rank` reads; sizes differ by one at most."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    count = stop - start
    return start + count * rank // ranks, start + count * (rank + 1) // ranks
