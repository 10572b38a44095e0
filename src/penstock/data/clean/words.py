"""The split into words that all filters share, for a batch of documents at once.

White space separates chunks, and the rules of `punctuation` split each chunk into words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.data.clean import characters as ch
from penstock.data.clean import punctuation
from penstock.data.clean.punctuation import Bools, Ints


@dataclass(frozen=True)
class Words:
    """Words of a batch. `text` has the characters without white space; a word is a slice of it."""

    text: npt.NDArray[np.uint32]
    bits: npt.NDArray[np.uint16]  # of `text`
    starts: Ints  # where each word starts in `text`, and the end
    documents: Ints  # the first word of each document, and the end
    places: Ints  # where each word starts in the batch joined by line feeds
    chunks: Ints  # where each chunk starts in it

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @property
    def document(self) -> Ints:
        """Return the document of each word."""
        return np.repeat(np.arange(len(self.documents) - 1), np.diff(self.documents))

    def having(self, bit: int, without: bool = False) -> Bools:
        """Return which words have a character with this bit (or one without it)."""
        has = (self.bits & bit) != 0
        total = np.zeros(len(has) + 1, np.int64)
        np.cumsum(~has if without else has, out=total[1:])
        return np.diff(total[self.starts]) > 0

    def strings(self) -> list[list[str]]:
        """Return the words as text, for people and tests."""
        text = self.text.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        ends = self.starts.tolist()
        flat = [text[a:b] for a, b in pairwise(ends)]
        cuts = self.documents.tolist()
        return [flat[a:b] for a, b in pairwise(cuts)]


def split_words(texts: Sequence[str]) -> Words:
    joined = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(joined, "<u4")
    table = ch.bits()[points]
    kept = np.flatnonzero((table & ch.SPACE) == 0)
    text, bits = points[kept], table[kept]
    first = np.ones(
        len(kept) + 1, np.bool_
    )  # first character of a chunk; one more entry for the end
    first[1:-1] = np.diff(kept) > 1
    starts = np.flatnonzero(punctuation.find_word_starts(text, bits, first))
    places = kept[starts]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(sizes + 1, out=offsets[1:])
    return Words(
        text=text,
        bits=bits,
        starts=np.append(starts, len(text)),
        documents=np.searchsorted(places, offsets),
        places=places,
        chunks=kept[first[:-1]],
    )
