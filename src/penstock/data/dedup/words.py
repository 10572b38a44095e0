"""64-bit hashes of the words of many texts, without a Python object for each word.

The fixed ranges below define words, not the Unicode database of the Python that runs, so the same
text gives the same hashes on every machine. A word is a run of letters and digits. Case is folded
up to Armenian. In scripts without spaces each character is a word. Runs of more than `LONGEST`
characters are cut, which bounds the work on one word.

The hash of a word is a polynomial in its characters modulo 2^64, computed from one running sum over
many texts and then mixed.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

LONGEST = 64  # characters
_PIECE = 1 << 15  # characters; so the running sum stays in the cache
_BASE = 0x9E3779B97F4A7C15
_ALONE = np.uint32(1 << 31)  # marks a character that is a word by itself

_LAST_FOLDED = 0x590  # case pairs below this have not changed since Unicode 8
# Neither letters nor digits, beyond ASCII.
_SEPARATORS = (
    (0x80, 0xA9), (0xAB, 0xB1), (0xB4, 0xB4), (0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF),
    (0xD7, 0xD7), (0xF7, 0xF7), (0x589, 0x58A), (0x5BE, 0x5BE), (0x5C0, 0x5C0), (0x5C3, 0x5C3),
    (0x5F3, 0x5F4), (0x60C, 0x60D), (0x61B, 0x61F), (0x66A, 0x66D), (0x6D4, 0x6D4),
    (0x964, 0x965), (0x1680, 0x1680), (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2190, 0x2BFF),
    (0x2E00, 0x2E7F), (0x3000, 0x3004), (0x3008, 0x3020), (0x3030, 0x3030), (0x30FB, 0x30FB),
    (0xD800, 0xDFFF), (0xE000, 0xF8FF), (0xFE10, 0xFE1F), (0xFE30, 0xFE6F), (0xFEFF, 0xFEFF),
    (0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFF0, 0xFFFF),
    (0x1F000, 0x1FAFF),
)  # fmt: skip
# Thai, Lao, Myanmar, Khmer, kana and Han.
_NO_SPACES = (
    (0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3021, 0x302F),
    (0x3031, 0x30FA), (0x30FC, 0x312F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)  # fmt: skip


@dataclass(frozen=True)
class HashedWords:
    """The hashes and positions of the words of many texts."""

    hashes: U64  # of every word, text after text
    offsets: Int64  # text i has the words offsets[i] to offsets[i + 1]
    starts: Int64  # of each word, as a position in `joined`
    ends: Int64
    joined: str  # all texts, with a space after each

    def text(self, first: int, last: int) -> str:
        """Return the text from the start of word `first` to the end of word `last`."""
        return self.joined[self.starts[first] : self.ends[last]]


def hash_words(texts: Sequence[str]) -> HashedWords:
    """Split each text into words, after NFC, and hash them."""
    clean = [to_nfc(text) for text in texts]
    joined = " ".join([*clean, ""])
    lengths = np.fromiter((len(text) + 1 for text in clean), np.int64, len(clean))
    characters = _fold_table()[np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")]
    starts, ends = _find_words(characters)
    text_starts = np.concatenate([[0], np.cumsum(lengths)])
    return HashedWords(
        hashes=_slice_hashes(characters, starts, ends),
        offsets=np.searchsorted(starts, text_starts).astype(np.int64),
        starts=starts,
        ends=ends,
        joined=joined,
    )


def to_nfc(text: str) -> str:
    """Return the text in NFC.

    The normal form of an assigned character never changes between Unicode versions.
    """
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text
    return unicodedata.normalize("NFC", text)


def mix64(x: U64) -> U64:
    """Apply MurmurHash3's finalizer: every bit of the result depends on every bit of `x`."""
    x = x ^ (x >> np.uint64(33))
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


def ngram_hashes(words: HashedWords, n: int) -> tuple[U64, Int64]:
    """Return the hash of every n-gram, and the offset of each text's first (one more than texts).

    A text with fewer than n words has one n-gram of all its words; one without words has none.
    """
    counts = np.diff(words.offsets)
    runs = np.where(counts == 0, 0, np.maximum(counts - n + 1, 1))
    offsets = np.concatenate([[0], np.cumsum(runs)]).astype(np.int64)
    first = np.arange(offsets[-1]) + np.repeat(words.offsets[:-1] - offsets[:-1], runs)
    padded = np.concatenate([words.hashes, np.zeros(n, np.uint64)])
    multipliers = _powers(n)[0]
    # Hash every window of the batch at once; the few that cross into the next text are not picked.
    windows = padded[: len(words.hashes)] * multipliers[0]
    for k in range(1, n):
        windows += padded[k : k + len(words.hashes)] * multipliers[k]
    picked = windows[first]
    short = np.flatnonzero((counts > 0) & (counts < n))
    for k in range(1, n):
        beyond = short[counts[short] <= k]  # texts that have no word k
        picked[offsets[beyond]] -= padded[words.offsets[beyond] + k] * multipliers[k]
    return mix64(picked), offsets


def _find_words(characters: npt.NDArray[np.uint32]) -> tuple[Int64, Int64]:
    inside = characters != 0
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if len(inside) and inside[0]:
        edges = np.concatenate([[0], edges])
    starts, ends = edges[0::2], edges[1::2]  # the space after each text closes its last word
    alone = np.flatnonzero(characters >= _ALONE)
    if len(alone):
        cuts = np.unique(np.concatenate([alone, alone + 1]))
        starts = np.union1d(starts, cuts[inside[cuts]])
        ends = np.union1d(ends, cuts[inside[cuts - 1] & (cuts > 0)])
    lengths = ends - starts
    if len(lengths) and lengths.max() > LONGEST:
        pieces = -(-lengths // LONGEST)
        before = np.cumsum(pieces) - pieces
        which = np.arange(pieces.sum()) - np.repeat(before, pieces)
        starts = np.repeat(starts, pieces) + which * LONGEST
        ends = np.minimum(starts + LONGEST, np.repeat(ends, pieces))
    return starts.astype(np.int64), ends.astype(np.int64)


def _slice_hashes(characters: npt.NDArray[np.uint32], starts: Int64, ends: Int64) -> U64:
    powers, inverse = _powers(_PIECE + LONGEST)
    hashes = np.empty(len(starts), np.uint64)
    first = 0
    while first < len(starts):
        begin = starts[first]
        last = int(np.searchsorted(starts, begin + _PIECE))
        piece = characters[begin : ends[last - 1]]
        sums = np.empty(len(piece) + 1, np.uint64)
        sums[0] = 0
        np.cumsum(piece * powers[: len(piece)], out=sums[1:])
        left, right = starts[first:last] - begin, ends[first:last] - begin
        hashes[first:last] = (sums[right] - sums[left]) * inverse[left]
        first = last
    return mix64(hashes)


@cache
def _powers(count: int) -> tuple[U64, U64]:
    """Return the powers of the base and of its inverse modulo 2^64."""
    both = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = np.full(count, base, np.uint64)
        powers[0] = 1
        both.append(np.cumprod(powers))
    return both[0], both[1]


@cache
def _fold_table() -> npt.NDArray[np.uint32]:
    """Map each code point to the value that is hashed: the folded character, 0 between words."""
    folds = np.arange(0x110000, dtype=np.uint32)
    for code in range(_LAST_FOLDED):
        lower = chr(code).lower()
        if len(lower) == 1:
            folds[code] = ord(lower)
    for first, last in _NO_SPACES:
        folds[first : last + 1] |= _ALONE
    for code in range(0x80):
        if not chr(code).isalnum():
            folds[code] = 0
    for first, last in _SEPARATORS:
        folds[first : last + 1] = 0
    return folds
