"""What the classifier sees of a text: which words and pairs of words it has, as numbers of buckets.

Words are those of deduplication: cheap, without case, and the same on every machine and with every
version of Unicode. A bucket counts once however often its word is said, so that a text cannot win
by saying one good word a thousand times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import Int64, hash_words, ngram_hashes

# A change in what is a feature needs a new number.
REVISION = 1
CHARACTERS = 1 << 16  # of a text that are looked at, from its begin

_BATCH_CHARACTERS = 1 << 17  # fits a core's cache with what is computed from it


@dataclass(frozen=True)
class Features:
    buckets: npt.NDArray[np.int64]  # in order within a text, each once
    offsets: Int64  # text i has the buckets offsets[i] to offsets[i + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, text: int) -> npt.NDArray[np.int64]:
        return self.buckets[self.offsets[text] : self.offsets[text + 1]]


def batches(texts: Sequence[str], bits: int) -> Iterator[Features]:
    """The features of some texts at a time, in the order of the texts; 2^bits buckets."""
    batch: list[str] = []
    size = 0
    for text in texts:
        cut = text[:CHARACTERS]
        if batch and size + len(cut) > _BATCH_CHARACTERS:
            yield features(batch, bits)
            batch, size = [], 0
        batch.append(cut)
        size += len(cut)
    if batch:
        yield features(batch, bits)


def features(texts: Sequence[str], bits: int) -> Features:
    found = hash_words(texts)
    pairs, pair_offsets = ngram_hashes(found, 2)
    text_of_word = np.repeat(np.arange(len(texts)), np.diff(found.offsets))
    text_of_pair = np.repeat(np.arange(len(texts)), np.diff(pair_offsets))
    hashes = np.concatenate([found.hashes, pairs])
    text = np.concatenate([text_of_word, text_of_pair])
    keys = (hashes >> np.uint64(64 - bits)).astype(np.int64) | text << bits
    keys.sort()
    once = np.ones(len(keys), np.bool_)
    once[1:] = keys[1:] != keys[:-1]
    keys = keys[once]
    return Features(
        buckets=keys & ((1 << bits) - 1),
        offsets=np.searchsorted(keys, np.arange(len(texts) + 1) << bits).astype(np.int64),
    )
