"""A few documents at a time, with what the filters share: the words, their hashes, the lines."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.data.clean import grams, words

Measures = dict[str, npt.NDArray[np.float64]]

# Sorting and gathering are fastest while a batch fits the cache.
_CHARACTERS = 1 << 18


def batches(texts: Sequence[str]) -> Iterator["Batch"]:
    """Cuts by number and size; a larger document is a batch of its own."""
    first = size = 0
    for place, text in enumerate(texts):
        full = place - first == grams.MOST_DOCUMENTS or size + len(text) > _CHARACTERS
        if full and place > first:
            yield Batch(texts[first:place])
            first, size = place, 0
        size += len(text)
    if first < len(texts):
        yield Batch(texts[first:])


class Batch:
    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.characters = np.fromiter(map(len, texts), np.int64, len(texts))
        self.words = words.split(texts)

    @cached_property
    def hashes(self) -> grams.Hashes:
        return grams.word_hashes(self.words)

    @cached_property
    def raw_lines(self) -> list[list[str]]:
        """The lines of each document with their ends."""
        return [text.splitlines(keepends=True) for text in self.texts]

    @cached_property
    def lines(self) -> list[list[str]]:
        """The lines of each document without blanks around them."""
        return [list(map(str.strip, lines)) for lines in self.raw_lines]

    @property
    def word_counts(self) -> words.Ints:
        return np.diff(self.words.documents)

    def per_document(self, values: npt.ArrayLike) -> words.Ints:
        """Sums over the words of each document."""
        total = np.zeros(int(self.words.documents[-1]) + 1, np.int64)
        np.cumsum(values, out=total[1:])
        return np.diff(total[self.words.documents])


def share(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """part / whole, and 0 where there is no whole."""
    return part / np.maximum(whole, 1)
