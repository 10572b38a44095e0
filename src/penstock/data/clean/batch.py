"""Batches of documents, with the words, hashes and lines that all filters share."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.data.clean import ngrams, words

Measures = dict[str, npt.NDArray[np.float64]]

_CHARACTERS = 1 << 18  # sorting and gathering are fastest while a batch fits the cache


def split_batches(texts: Sequence[str]) -> Iterator["TextBatch"]:
    """Split texts into batches by number and size; a larger document is a batch of its own."""
    first = size = 0
    for place, text in enumerate(texts):
        full = place - first == ngrams.MOST_DOCUMENTS or size + len(text) > _CHARACTERS
        if full and place > first:
            yield TextBatch(texts[first:place])
            first, size = place, 0
        size += len(text)
    if first < len(texts):
        yield TextBatch(texts[first:])


class TextBatch:
    """Some documents, with their words, hashes and lines computed once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.characters = np.fromiter(map(len, texts), np.int64, len(texts))
        self.words = words.split_words(texts)

    @cached_property
    def hashes(self) -> ngrams.Hashes:
        return ngrams.word_hashes(self.words)

    @cached_property
    def raw_lines(self) -> list[list[str]]:
        """Return the lines of each document with their line ends."""
        return [text.splitlines(keepends=True) for text in self.texts]

    @cached_property
    def lines(self) -> list[list[str]]:
        """Return the lines of each document, stripped of white space."""
        return [list(map(str.strip, lines)) for lines in self.raw_lines]

    @property
    def word_counts(self) -> words.Ints:
        return np.diff(self.words.documents)

    def per_document(self, values: npt.ArrayLike) -> words.Ints:
        """Sum a value per word over the words of each document."""
        total = np.zeros(int(self.words.documents[-1]) + 1, np.int64)
        np.cumsum(values, out=total[1:])
        return np.diff(total[self.words.documents])


def safe_ratio(
    part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return part / whole, and 0 where whole is 0."""
    return part / np.maximum(whole, 1)
