"""The sample order as a pure function of (samples, seed, position).

`feistel-1` (`ShuffleOrder`): each epoch is a keyed Feistel permutation of [0, samples). Any
position can be looked up by itself, so resuming costs nothing and no index is held in memory. The
network works on the smallest power of two that holds `samples`; a value outside is permuted again
until it falls inside (cycle walking, fewer than two passes on average), and the result is a
permutation of exactly the samples.

`window-1` (`WindowOrder`): an order for sets that do not fit into memory. Blocks of neighbouring
samples are shuffled over the whole set; then the samples of `span` blocks in a row (a window) are
shuffled among themselves. A run reads from one or two windows at a time: it fetches each byte once
per epoch, in large pieces, and needs only a small cache. Both shuffles are keyed permutations, so a
position is still a formula. The last block, which is short, needs care: it comes in the middle of
the order, at a place that the inverse permutation gives, and every place after it moves up by the
number of samples that it lacks.

The name of an order is part of every saved state. A change of a single output value needs a new
name.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

SHUFFLE_NAME = "feistel-1"
WINDOW_NAME = "window-1"
SPAN = 16  # blocks in a window

_ROUNDS = 8
# With fewer bits a Feistel network has too few functions to choose from to mix well.
_MIN_BITS = 6
_MAX_SAMPLES = 2**62
_FIRST_LOOKUP, _MAX_LOOKUP = 64, 4096  # positions

Positions = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
_Integer = TypeVar("_Integer", bound=np.integer)


class Order(Protocol):
    """An endless sequence of sample numbers; each epoch has every sample once."""

    @property
    def name(self) -> str: ...

    @property
    def samples(self) -> int: ...

    def index(self, positions: npt.ArrayLike) -> Indices:
        """Return the sample at each position."""
        ...


@dataclass(frozen=True)
class ShuffleOrder:
    """`feistel-1`: a sample may come from anywhere in the set."""

    samples: int
    seed: int
    name: ClassVar[str] = SHUFFLE_NAME

    def index(self, positions: npt.ArrayLike) -> Indices:
        epochs, offsets, shape = split(positions, self.samples)
        keys = epoch_keys(SHUFFLE_NAME, self.seed, epochs)
        return permute(offsets, self.samples, keys).astype(np.int64).reshape(shape)


@dataclass(frozen=True)
class WindowOrder:
    """`window-1`: samples come from one or two windows at a time."""

    samples: int
    seed: int
    block: int  # samples
    span: int = SPAN  # blocks

    @property
    def name(self) -> str:
        """Name with its sizes: other sizes are another order."""
        return f"{WINDOW_NAME}/{self.block}x{self.span}"

    def index(self, positions: npt.ArrayLike) -> Indices:
        epochs, offsets, shape = split(positions, self.samples)
        out = np.empty(len(offsets), dtype=np.int64)
        for epoch in distinct(epochs):
            rows = np.flatnonzero(epochs == epoch)
            out[rows] = self._index_in_epoch(epoch, offsets[rows])
        return out.reshape(shape)

    def _index_in_epoch(self, epoch: np.uint64, offsets: Positions) -> Indices:
        keys = epoch_keys(WINDOW_NAME, self.seed, np.array([epoch], dtype=np.uint64))
        blocks = -(-self.samples // self.block)
        lacking = np.uint64(blocks * self.block - self.samples)
        last = np.array([blocks - 1], dtype=np.uint64)
        short = int(permute(last, blocks, keys, inverse=True)[0])  # place of the short block
        whole = np.uint64(self.block * self.span)
        behind = np.uint64(
            min((short // self.span + 1) * self.block * self.span, blocks * self.block)
        )
        # After the window that holds the short block, count as if that block were full.
        moved = np.where(offsets + lacking >= behind, offsets + lacking, offsets)
        window, place = np.divmod(moved, whole)
        place = self._shuffle_windows(window, place, blocks, short, int(lacking), keys)
        slot, rest = np.divmod(window * whole + place, np.uint64(self.block))
        index = permute(slot, blocks, keys) * np.uint64(self.block) + rest
        return index.astype(np.int64)

    def _shuffle_windows(
        self,
        window: Positions,
        place: Positions,
        blocks: int,
        short: int,
        lacking: int,
        keys: npt.NDArray[np.uint64],
    ) -> Positions:
        """Shuffle the places of each window among themselves."""
        whole = self.block * self.span
        sizes = np.minimum(whole, blocks * self.block - window.astype(np.int64) * whole)
        holds_short = window == np.uint64(short // self.span)
        sizes[holds_short] -= lacking
        # The keys of a window follow from those of the epoch, without a hash per window.
        windows = distinct(window)
        own = mix_bits(keys ^ mix_bits(windows + np.uint64(1))[:, None])
        if several := len(windows) > 1:
            own = own[np.searchsorted(windows, window)]
        out = np.empty_like(place)
        for size in distinct(sizes):
            rows = np.flatnonzero(sizes == size)
            out[rows] = permute(place[rows], int(size), own[rows] if several else own)
        # In the window with the short block, skip the samples that this block lacks.
        end = np.uint64((short % self.span + 1) * self.block - lacking)
        out[holds_short & (out >= end)] += np.uint64(lacking)
        return out


class OrderLookup:
    """A look-up that computes many consecutive positions at once.

    Eight positions cost a third of what four thousand do. The first look-up computes few, so that
    a resume does not wait; each later one computes eight times as many as the one before. The
    computed part is replaced as a whole, so threads may share it.
    """

    def __init__(self, order: Order, stride: int = 1) -> None:
        self.order = order
        self.stride = stride  # sample numbers are multiplied by it
        self._computed: tuple[int, int, Indices] = (0, 0, np.empty(0, dtype=np.int64))

    def index(self, start: int, stop: int) -> Indices:
        """Return `stride` times the samples at positions [start, stop)."""
        first, end, computed = self._computed
        if not first <= start <= stop <= end:
            if start == stop:
                return computed[:0]
            ahead = min(8 * len(computed) or _FIRST_LOOKUP, _MAX_LOOKUP)
            first, end = start, max(stop, start + ahead)
            computed = self.order.index(np.arange(first, end, dtype=np.uint64)) * self.stride
            computed.flags.writeable = False  # callers get views of it
            self._computed = first, end, computed
        return computed[start - first : stop - first]


def split(positions: npt.ArrayLike, samples: int) -> tuple[Positions, Positions, tuple[int, ...]]:
    """Return (epoch, place in the epoch) of each position, flat, and the original shape."""
    if not 1 <= samples <= _MAX_SAMPLES:
        raise ValueError(f"samples must lie in 1 .. 2**62, found {samples}")
    array = np.asarray(positions)
    if array.size and array.min() < 0:
        raise ValueError(f"positions start at 0, found {array.min()}")
    epochs, offsets = np.divmod(array.astype(np.uint64).ravel(), np.uint64(samples))
    return epochs, offsets, array.shape


def epoch_keys(name: str, seed: int, epochs: Positions) -> npt.NDArray[np.uint64]:
    """Return the keys of each epoch, [n, rounds]; one row, which broadcasts, if all are equal."""
    each = distinct(epochs)
    table = np.array([_keys(name, seed, int(epoch)) for epoch in each], dtype=np.uint64)
    return table if len(each) == 1 else table.reshape(-1, _ROUNDS)[np.searchsorted(each, epochs)]


def distinct(values: npt.NDArray[_Integer]) -> npt.NDArray[_Integer]:
    """Return each value once, ascending.

    `np.unique` imports masked arrays at its first call: 8 ms, most of the time of the first lookup
    after a resume.
    """
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


@lru_cache(maxsize=4096)
def _keys(name: str, seed: int, epoch: int) -> tuple[int, ...]:
    """Return one 64-bit key per round; any integer can be a seed."""
    digest = blake3(f"{name} {seed} {epoch}".encode()).digest(length=8 * _ROUNDS)
    return tuple(int(key) for key in np.frombuffer(digest, dtype="<u8"))


def permute(
    values: Positions, size: int, keys: npt.NDArray[np.uint64], inverse: bool = False
) -> Positions:
    """Permute [0, size) by the keys, or with `inverse` undo it."""
    bits = max((size - 1).bit_length(), _MIN_BITS)
    values = _permute_bits(values, bits, keys, inverse)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        again = _permute_bits(
            values[outside], bits, keys if len(keys) == 1 else keys[outside], inverse
        )
        values[outside] = again
        outside = outside[again >= size]
    return values


def _permute_bits(
    values: Positions, bits: int, keys: npt.NDArray[np.uint64], inverse: bool = False
) -> Positions:
    """Permute [0, 2**bits): each round changes one half by a function of the other half.

    A round is its own inverse, so the inverse is the same rounds in the opposite order.
    """
    width = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> width
    for round_ in reversed(range(_ROUNDS)) if inverse else range(_ROUNDS):
        if round_ % 2:
            high = high ^ (mix_bits(low + keys[:, round_]) & high_mask)
        else:
            low = low ^ (mix_bits(high + keys[:, round_]) & low_mask)
    return (high << width) | low


def mix_bits(z: Positions) -> Positions:
    """Apply the finalizer of splitmix64: every input bit reaches every output bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
