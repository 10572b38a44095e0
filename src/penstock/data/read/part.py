"""One dataset of a stream, in its own order."""

from collections.abc import Iterator

import numpy as np

from penstock.data.format.shard_file import BadBlock
from penstock.data.read.batch import Batch, Skipped
from penstock.data.read.dataset import Dataset
from penstock.data.read.order import Indices, OrderLookup
from penstock.data.read.samples import OrderKind, SampleSplit, choose_order


class StreamPart:
    """One dataset of a stream, with its own sample order."""

    def __init__(
        self, dataset: Dataset, sequence: int, seed: int, holdout: float, order: OrderKind
    ) -> None:
        split = SampleSplit.of(dataset.tokens, sequence, holdout)
        self.dataset, self.sequence = dataset, sequence
        self.samples, self.held_out = split.samples, split.held_out
        size = dataset.dtype.itemsize
        self.order = choose_order(order, dataset.tokens * size, sequence * size, self.samples, seed)
        self._lookup = OrderLookup(self.order, sequence)

    def training_starts(self, start: int, stop: int) -> Indices:
        """Return the first tokens of samples [start, stop) of this part's order."""
        return self._lookup.index(start, stop)

    def held_out_starts(self, numbers: Indices) -> Indices:
        """Return the first tokens of held-out samples; number 0 is the first held-out one."""
        return (self.samples + numbers) * self.sequence

    def plan_ahead(self, ranges: Iterator[tuple[int, int]]) -> None:
        """Announce to the dataset what will be read."""
        lookup = OrderLookup(self.order, self.sequence)  # it runs far ahead of the reader's own
        starts = (lookup.index(start, stop) for start, stop in ranges)
        self.dataset.plan_ahead(starts, self.sequence + 1)

    def read(self, starts: Indices, marks: bool, skip: bool) -> Batch:
        """Return the samples that begin at `starts`. With `skip`, damaged ones do not count."""
        try:
            return self._read_samples(starts, marks)
        except BadBlock as bad:
            if not skip:
                raise
            return self._read_without_damage(bad, starts, marks)

    def _read_without_damage(self, bad: BadBlock, starts: Indices, marks: bool) -> Batch:
        """Read again without the samples that need a bad block, until no bad block is left."""
        good = np.ones(len(starts), dtype=bool)
        skipped: list[Skipped] = []
        while True:
            hit = np.isin(starts, bad.starts) & good
            if not hit.any():
                raise bad
            good &= ~hit
            skipped.append(self._skipped(bad))
            try:
                return _fill_gaps(self._read_samples(starts[good], marks), good, tuple(skipped))
            except BadBlock as another:
                bad = another

    def _read_samples(self, starts: Indices, marks: bool) -> Batch:
        dataset, length = self.dataset, self.sequence + 1
        return Batch(
            dataset.crops(starts, length, np.int64),
            dataset.loss_mask(starts, length),
            dataset.document_marks(starts, length) if marks else None,
        )

    def _skipped(self, bad: BadBlock) -> Skipped:
        first, last = bad.tokens
        lowest = max(0, -(-(first - self.sequence) // self.sequence))
        highest = min((last - 1) // self.sequence, self.samples + self.held_out - 1)
        return Skipped(self.dataset.id, bad.file, bad.block, (lowest, highest))


def _fill_gaps(batch: Batch, good: np.ndarray, skipped: tuple[Skipped, ...]) -> Batch:
    """Return a batch with the good rows in their places; the others are zeros and do not count."""
    shape = (len(good), batch.tokens.shape[1])
    tokens, loss = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    tokens[good] = batch.tokens
    loss[good] = True if batch.loss is None else batch.loss
    starts = None
    if batch.starts is not None:
        starts = np.zeros(shape, dtype=bool)
        starts[good] = batch.starts
    return Batch(tokens, loss, starts, skipped)
