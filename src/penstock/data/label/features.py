"""The features of a text for the classifier: its words and pairs of words, hashed to buckets.

Words are those of deduplication: cheap, without case, and the same on every machine and with every
version of Unicode. A bucket counts once however often its word occurs, so that a text cannot get a
good score by repeating one good word a thousand times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import Int64, hash_words, ngram_hashes
from penstock.data.workers.text_batches import batch_ranges

REVISION = 1  # raise it when the features change
CHARACTERS = 1 << 16  # only the beginning of a text is used

_BATCH_CHARACTERS = 1 << 17  # a batch and its intermediate arrays fit a core's cache


@dataclass(frozen=True)
class Features:
    """The buckets of several texts."""

    buckets: npt.NDArray[np.int64]  # in order within a text, each once
    offsets: Int64  # text i has the buckets offsets[i] to offsets[i + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of_text(self, text: int) -> npt.NDArray[np.int64]:
        return self.buckets[self.offsets[text] : self.offsets[text + 1]]


def batch_features(texts: Sequence[str], bits: int) -> Iterator[Features]:
    """Yield the features of the texts in order, a batch at a time."""
    beginnings = [text[:CHARACTERS] for text in texts]
    for first, last in batch_ranges(beginnings, _BATCH_CHARACTERS):
        yield extract_features(beginnings[first:last], bits)


def extract_features(texts: Sequence[str], bits: int) -> Features:
    """Hash the words and pairs of words of each text to 2^bits buckets."""
    words = hash_words(texts)
    pairs, pair_offsets = ngram_hashes(words, 2)
    text_of_word = np.repeat(np.arange(len(texts)), np.diff(words.offsets))
    text_of_pair = np.repeat(np.arange(len(texts)), np.diff(pair_offsets))
    hashes = np.concatenate([words.hashes, pairs])
    text = np.concatenate([text_of_word, text_of_pair])
    keys = (hashes >> np.uint64(64 - bits)).astype(np.int64) | text << bits
    keys.sort()
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    keys = keys[is_first]
    return Features(
        buckets=keys & ((1 << bits) - 1),
        offsets=np.searchsorted(keys, np.arange(len(texts) + 1) << bits).astype(np.int64),
    )
