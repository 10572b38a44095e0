"""The sample order as a pure function of (samples, seed, position).

Each epoch is a keyed Feistel permutation of [0, samples): any position can be looked up by itself,
so resuming costs nothing and no index is ever held in memory. The network works on the smallest
power of two that holds `samples`; a value that falls outside is permuted again until it falls
inside (cycle walking, fewer than two passes on average), and what remains is a permutation of
exactly the samples.

`ORDER` names the algorithm and stands in every saved state. A change of a single output value needs
a new name.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from blake3 import blake3

ORDER = "feistel-1"

_ROUNDS = 8
# On a handful of values a Feistel network has too few functions to choose from to mix well.
_LEAST_BITS = 6
_MOST_SAMPLES = 2**62

Positions = npt.NDArray[np.uint64]


def index(positions: npt.ArrayLike, samples: int, seed: int) -> npt.NDArray[np.int64]:
    """The sample at each position of the endless order: epoch after epoch, each newly shuffled."""
    if not 1 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"samples must lie in 1 .. 2**62, found {samples}")
    asked = np.asarray(positions)
    if asked.size and asked.min() < 0:
        raise ValueError(f"positions start at 0, found {asked.min()}")
    epochs, offsets = np.divmod(asked.astype(np.uint64), np.uint64(samples))
    distinct, which = np.unique(epochs, return_inverse=True)
    table = np.array([_keys(seed, int(epoch)) for epoch in distinct], dtype=np.uint64)
    # One row of keys broadcasts; a batch across epochs carries a row for each position.
    keys = table if len(distinct) == 1 else table.reshape(-1, _ROUNDS)[which.ravel()]
    return _walk(offsets.ravel(), samples, keys).astype(np.int64).reshape(asked.shape)


@lru_cache(maxsize=4096)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    """One 64-bit key per round; any integer is a seed."""
    digest = blake3(f"{ORDER} {seed} {epoch}".encode()).digest(length=8 * _ROUNDS)
    return tuple(int(key) for key in np.frombuffer(digest, dtype="<u8"))


def _walk(values: Positions, samples: int, keys: npt.NDArray[np.uint64]) -> Positions:
    bits = max((samples - 1).bit_length(), _LEAST_BITS)
    values = _permute(values, bits, keys)
    outside = np.flatnonzero(values >= samples)
    while outside.size:
        again = _permute(values[outside], bits, keys if len(keys) == 1 else keys[outside])
        values[outside] = again
        outside = outside[again >= samples]
    return values


def _permute(values: Positions, bits: int, keys: npt.NDArray[np.uint64]) -> Positions:
    """A permutation of [0, 2**bits): a round changes one half by a function of the other half."""
    width = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> width
    for turn in range(0, _ROUNDS, 2):
        low = low ^ (_mix(high + keys[:, turn]) & low_mask)
        high = high ^ (_mix(low + keys[:, turn + 1]) & high_mask)
    return (high << width) | low


def _mix(z: Positions) -> Positions:
    """The finalizer of splitmix64: every input bit reaches every output bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
