"""`window-1`: an order that stays local, for sets that do not fit into memory.

Blocks of neighbouring samples stand in a shuffled order over the whole set; the samples of `span`
blocks in a row (a window) are shuffled among themselves. At any time a run reads from one or two
windows only: each byte is fetched once an epoch, in large pieces, and a small cache is enough.

Both shuffles are keyed permutations, so a position is still a formula. What takes care is the last
block, which is short: it comes in the middle of the order, at a place that the inverse permutation
tells, and every place behind it moves up by what it lacks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.read.order import Indices, Positions, distinct, keys_of, mix, split, walk

NAME = "window-1"
SPAN = 16  # blocks in a window


@dataclass(frozen=True)
class Window:
    samples: int
    seed: int
    block: int  # samples
    span: int = SPAN  # blocks

    @property
    def name(self) -> str:
        """With its sizes: other ones are another order."""
        return f"{NAME}/{self.block}x{self.span}"

    def index(self, positions: npt.ArrayLike) -> Indices:
        epochs, offsets, shape = split(positions, self.samples)
        out = np.empty(len(offsets), dtype=np.int64)
        for epoch in distinct(epochs):
            rows = np.flatnonzero(epochs == epoch)
            out[rows] = self._of_epoch(epoch, offsets[rows])
        return out.reshape(shape)

    def _of_epoch(self, epoch: np.uint64, offsets: Positions) -> Indices:
        keys = keys_of(NAME, self.seed, np.array([epoch], dtype=np.uint64))
        blocks = -(-self.samples // self.block)
        lacking = np.uint64(blocks * self.block - self.samples)
        last = np.array([blocks - 1], dtype=np.uint64)
        short = int(walk(last, blocks, keys, back=True)[0])  # where the short block comes
        whole = np.uint64(self.block * self.span)
        behind = np.uint64(
            min((short // self.span + 1) * self.block * self.span, blocks * self.block)
        )
        # Behind the window that holds the short block, count as if that block were whole.
        moved = np.where(offsets + lacking >= behind, offsets + lacking, offsets)
        window, place = np.divmod(moved, whole)
        place = self._inside(window, place, blocks, short, int(lacking), keys)
        slot, rest = np.divmod(window * whole + place, np.uint64(self.block))
        found = walk(slot, blocks, keys) * np.uint64(self.block) + rest
        return found.astype(np.int64)

    def _inside(
        self,
        window: Positions,
        place: Positions,
        blocks: int,
        short: int,
        lacking: int,
        keys: npt.NDArray[np.uint64],
    ) -> Positions:
        """Shuffles the places of each window among themselves."""
        whole = self.block * self.span
        sizes = np.minimum(whole, blocks * self.block - window.astype(np.int64) * whole)
        holds_short = window == np.uint64(short // self.span)
        sizes[holds_short] -= lacking
        # Each window's keys follow from the epoch's: no hash to compute for each of them.
        named = distinct(window)
        own = mix(keys ^ mix(named + np.uint64(1))[:, None])
        if several := len(named) > 1:
            own = own[np.searchsorted(named, window)]
        out = np.empty_like(place)
        for size in distinct(sizes):
            rows = np.flatnonzero(sizes == size)
            out[rows] = walk(place[rows], int(size), own[rows] if several else own)
        # In the window with the short block, skip what that block does not have.
        end = np.uint64((short % self.span + 1) * self.block - lacking)
        out[holds_short & (out >= end)] += np.uint64(lacking)
        return out
