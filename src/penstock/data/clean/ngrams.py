"""N-grams that repeat within a document, found by hashes of words and one sort per length.

The hash of a slice comes from running sums: H(a, b) = (S[b] − S[a]) · r⁻ᵃ modulo 2⁶⁴, where S are
the sums of value · rⁱ. The arithmetic is exact, so a slice has the same hash wherever it is in a
batch. An n-gram can only repeat if its first n − 1 words repeat, so each sort gets what the last
one left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.data.clean.words import Ints, Words

Hashes = npt.NDArray[np.uint64]

MOST_DOCUMENTS = 256  # in a batch: the document number takes the top 8 bits of a key
_ROOT = 0x9E3779B97F4A7C15 | 5  # odd, so it has an inverse modulo 2⁶⁴
_KEPT = 1 << 22  # largest table that is cached: 32 MB
_INVERSE = pow(_ROOT, -1, 1 << 64)


@lru_cache(maxsize=2)
def _table(inverse: bool, size: int) -> Hashes:
    powers = np.full(size, _INVERSE if inverse else _ROOT, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _powers(inverse: bool, size: int) -> Hashes:
    """Return rⁱ or r⁻ⁱ for i < size, from a table that grows by doubling."""
    if size > _KEPT:  # for one huge document; a table of gigabytes should not stay in memory
        return _table.__wrapped__(inverse, size)
    return _table(inverse, 1 << max(18, (size - 1).bit_length()))[:size]


def _mixed(values: Hashes) -> Hashes:
    """Spread each value over all 64 bits (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class SliceHashes:
    """Hashes of slices of an array."""

    def __init__(self, values: Hashes) -> None:
        self._sums = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(_mixed(values + np.uint64(1)) * _powers(False, len(values)), out=self._sums[1:])
        self._back = _powers(True, len(values) + 1)

    def hashes(self, starts: Ints, ends: Ints) -> Hashes:
        return _mixed((self._sums[ends] - self._sums[starts]) * self._back[starts])


def word_hashes(words: Words) -> Hashes:
    return SliceHashes(words.text.astype(np.uint64)).hashes(words.starts[:-1], words.starts[1:])


@dataclass(frozen=True)
class RepeatedNgrams:
    """N-grams that occur at least twice in their document."""

    n: int
    at: Ints  # first word of each, in order
    keys: Hashes  # equal for equal n-grams of one document, different across documents


def find_repeats(words: Words, hashes: Hashes, sizes: list[int]) -> Iterator[RepeatedNgrams]:
    """Yield the n-grams that repeat, for each size of a rising list."""
    document = words.document
    slices = SliceHashes(hashes)
    at = np.arange(len(document))
    for n in sizes:
        at = at[at + n <= len(document)]
        at = at[document[at] == document[at + n - 1]]
        keys = slices.hashes(at, at + n) >> np.uint64(8)
        keys |= document[at].astype(np.uint64) << np.uint64(56)
        order = np.argsort(keys)
        ranked = keys[order]
        same = np.zeros(len(ranked) + 1, np.bool_)
        same[1:-1] = ranked[1:] == ranked[:-1]
        chosen = np.sort(order[same[1:] | same[:-1]])
        at, keys = at[chosen], keys[chosen]
        yield RepeatedNgrams(n, at, keys)


def top_characters(words: Words, found: RepeatedNgrams) -> Ints:
    """Return per document the characters in its most frequent n-gram, with the spaces inside.

    Among equally frequent n-grams the first counts.
    """
    n, starts = found.n, words.starts
    first, last = words.documents[:-1], words.documents[1:]
    out = np.zeros(len(first), np.int64)
    # If nothing repeats, every n-gram is a most frequent one, and the first counts.
    any_run = np.flatnonzero(last - first >= n)
    head = first[any_run]
    out[any_run] = starts[head + n] - starts[head] + n - 1
    if found.at.size:
        _, where, count = np.unique(found.keys, return_index=True, return_counts=True)
        at = found.at[where]
        document = np.searchsorted(words.documents, at, "right") - 1
        best = np.lexsort((at, -count, document))
        lead = best[np.unique(document[best], return_index=True)[1]]
        at, count = at[lead], count[lead]
        out[document[lead]] = (starts[at + n] - starts[at] + n - 1) * count
    return out


def repeated_characters(words: Words, found: RepeatedNgrams) -> Ints:
    """Return per document the characters of n-grams that occurred before, without overlap.

    Reading goes from left to right. A repeated n-gram is skipped as a whole, and n-grams that start
    inside it are not remembered.
    """
    n = found.n
    seen: set[int] = set()
    hits: list[int] = []
    free = 0
    for at, key in zip(found.at.tolist(), found.keys.tolist(), strict=True):
        if at < free:
            continue
        if key in seen:
            hits.append(at)
            free = at + n
        else:
            seen.add(key)
    out = np.zeros(len(words.documents) - 1, np.int64)
    where = np.array(hits, np.int64)
    document = np.searchsorted(words.documents, where, "right") - 1
    np.add.at(out, document, words.starts[where + n] - words.starts[where])
    return out
