"""The sample order as a pure function of (samples, seed, position).

Each epoch is a keyed Feistel permutation of [0, samples): any position can be looked up by itself,
so resuming costs nothing and no index is ever held in memory. The network works on the smallest
power of two that holds `samples`; a value that falls outside is permuted again until it falls
inside (cycle walking, fewer than two passes on average), and what remains is a permutation of
exactly the samples.

The name of an order stands in every saved state. A change of a single output value needs a new
name. `order_window.py` is a second order, for sets that do not fit into memory.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

ORDER = "feistel-1"

_ROUNDS = 8
# On a handful of values a Feistel network has too few functions to choose from to mix well.
_LEAST_BITS = 6
_MOST_SAMPLES = 2**62

Positions = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
_Integer = TypeVar("_Integer", bound=np.integer)


class Order(Protocol):
    """An endless sequence of sample numbers, epoch after epoch, each epoch every sample once."""

    @property
    def name(self) -> str: ...

    @property
    def samples(self) -> int: ...

    def index(self, positions: npt.ArrayLike) -> Indices:
        """The sample at each position."""
        ...


@dataclass(frozen=True)
class Shuffle:
    """`feistel-1`: a sample may come from anywhere in the set."""

    samples: int
    seed: int
    name: ClassVar[str] = ORDER

    def index(self, positions: npt.ArrayLike) -> Indices:
        return index(positions, self.samples, self.seed)


def index(positions: npt.ArrayLike, samples: int, seed: int) -> Indices:
    """The sample at each position of the endless order: epoch after epoch, each newly shuffled."""
    epochs, offsets, shape = split(positions, samples)
    keys = keys_of(ORDER, seed, epochs)
    return walk(offsets, samples, keys).astype(np.int64).reshape(shape)


def split(positions: npt.ArrayLike, samples: int) -> tuple[Positions, Positions, tuple[int, ...]]:
    """(epoch, place in the epoch) of each position, flat, and the shape they came in."""
    if not 1 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"samples must lie in 1 .. 2**62, found {samples}")
    asked = np.asarray(positions)
    if asked.size and asked.min() < 0:
        raise ValueError(f"positions start at 0, found {asked.min()}")
    epochs, offsets = np.divmod(asked.astype(np.uint64).ravel(), np.uint64(samples))
    return epochs, offsets, asked.shape


def keys_of(name: str, seed: int, epochs: Positions) -> npt.NDArray[np.uint64]:
    """The keys of each epoch, [n, rounds]; one row, which broadcasts, where all are the same."""
    found = distinct(epochs)
    table = np.array([_keys(name, seed, int(epoch)) for epoch in found], dtype=np.uint64)
    return table if len(found) == 1 else table.reshape(-1, _ROUNDS)[np.searchsorted(found, epochs)]


def distinct(values: npt.NDArray[_Integer]) -> npt.NDArray[_Integer]:
    """Each value once, ascending. `np.unique` imports masked arrays when first called: 8 ms, most
    of what the first lookup after a resume took."""
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


@lru_cache(maxsize=4096)
def _keys(name: str, seed: int, epoch: int) -> tuple[int, ...]:
    """One 64-bit key per round; any integer is a seed."""
    digest = blake3(f"{name} {seed} {epoch}".encode()).digest(length=8 * _ROUNDS)
    return tuple(int(key) for key in np.frombuffer(digest, dtype="<u8"))


def walk(
    values: Positions, size: int, keys: npt.NDArray[np.uint64], back: bool = False
) -> Positions:
    """A permutation of [0, size), or with `back` its inverse."""
    bits = max((size - 1).bit_length(), _LEAST_BITS)
    values = _permute(values, bits, keys, back)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        again = _permute(values[outside], bits, keys if len(keys) == 1 else keys[outside], back)
        values[outside] = again
        outside = outside[again >= size]
    return values


def _permute(
    values: Positions, bits: int, keys: npt.NDArray[np.uint64], back: bool = False
) -> Positions:
    """A permutation of [0, 2**bits): a round changes one half by a function of the other half.

    A round is its own inverse, so that the way back is the same rounds in the opposite order.
    """
    width = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> width
    for turn in reversed(range(_ROUNDS)) if back else range(_ROUNDS):
        if turn % 2:
            high = high ^ (mix(low + keys[:, turn]) & high_mask)
        else:
            low = low ^ (mix(high + keys[:, turn]) & low_mask)
    return (high << width) | low


def mix(z: Positions) -> Positions:
    """The finalizer of splitmix64: every input bit reaches every output bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
