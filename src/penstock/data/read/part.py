"""One dataset of a stream, in its own order."""

from collections.abc import Iterator

import numpy as np

from penstock.data.read.batch import Batch, Skipped
from penstock.data.read.dataset import BadBlock, Dataset
from penstock.data.read.order import Indices
from penstock.data.read.order_choice import Kind, order_of
from penstock.data.read.order_lookup import Lookup
from penstock.data.read.sizes import Split


class Part:
    def __init__(
        self, dataset: Dataset, sequence: int, seed: int, holdout: float, order: Kind
    ) -> None:
        split = Split.of(dataset.tokens, sequence, holdout)
        self.dataset, self.sequence = dataset, sequence
        self.samples, self.held_out = split.samples, split.held_out
        size = dataset.dtype.itemsize
        self.order = order_of(order, dataset.tokens * size, sequence * size, self.samples, seed)
        self._lookup = Lookup(self.order, sequence)

    def training(self, start: int, stop: int) -> Indices:
        """Where samples [start, stop) of this part's order begin, tokens."""
        return self._lookup.index(start, stop)

    def evaluation(self, chosen: Indices) -> Indices:
        """Where held-out samples begin, tokens; 0 is the first that is held out."""
        return (self.samples + chosen) * self.sequence

    def plan_ahead(self, ranges: Iterator[tuple[int, int]]) -> None:
        """Tells a remote dataset what will be read; a local one does not look."""
        lookup = Lookup(self.order, self.sequence)  # far ahead of the reader's own
        starts = (lookup.index(start, stop) for start, stop in ranges)
        self.dataset.plan_ahead(starts, self.sequence + 1)

    def take(self, starts: Indices, marks: bool, skip: bool) -> Batch:
        """The samples that begin there. With `skip`, those that are damaged count nothing."""
        try:
            return self._read(starts, marks)
        except BadBlock as bad:
            if not skip:
                raise
            return self._without(bad, starts, marks)

    def _without(self, bad: BadBlock, starts: Indices, marks: bool) -> Batch:
        """What can be read, block after block that cannot."""
        good = np.ones(len(starts), dtype=bool)
        skipped: list[Skipped] = []
        while True:
            hit = np.isin(starts, bad.starts) & good
            if not hit.any():
                raise bad
            good &= ~hit
            skipped.append(self._skipped(bad))
            try:
                return _spread(self._read(starts[good], marks), good, tuple(skipped))
            except BadBlock as another:
                bad = another

    def _read(self, starts: Indices, marks: bool) -> Batch:
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


def _spread(found: Batch, good: np.ndarray, skipped: tuple[Skipped, ...]) -> Batch:
    """Puts the good rows where they belong; the others are blank and count nothing."""
    shape = (len(good), found.tokens.shape[1])
    tokens, loss = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    tokens[good] = found.tokens
    loss[good] = True if found.loss is None else found.loss
    starts = None
    if found.starts is not None:
        starts = np.zeros(shape, dtype=bool)
        starts[good] = found.starts
    return Batch(tokens, loss, starts, skipped)
