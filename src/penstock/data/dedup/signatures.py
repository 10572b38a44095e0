"""MinHash signatures: the more n-grams two texts share, the more of their values are equal.

The share of equal values (places) in two signatures estimates the Jaccard similarity of the two
sets of n-grams. Bands of neighbouring places become keys; two texts with a key in common are
candidates for being copies.

The engine `numpy` is our own fast similarity sketch (Dahlgaard, Knudsen and Thorup, FOCS 2017). In
each round an n-gram falls into one place, and the smallest hash in a place stays. A place that is
empty after all rounds takes the smallest hash of all n-grams under its own hash function. So the
cost grows with the n-grams, not with n-grams × places. The engine `rensa` is the same idea in Rust
with other hash functions. Its values differ, so the engine is part of `identity`, and keys of two
engines are never compared.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import U64, Int64, hash_words, mix64, ngram_hashes
from penstock.data.format.manifest import Json
from penstock.data.workers.text_batches import batch_ranges
from penstock.errors import PenstockError
from penstock.extras import extra

U32 = npt.NDArray[np.uint32]
REVISION = 1  # raise it when words, n-grams, places or keys change
EMPTY = 0xFFFFFFFF  # value of every place of a text without words

_ROUNDS = 3
_BATCH_CHARACTERS = 1 << 17  # a batch and its intermediate arrays fit a core's cache
_PAIRS = 1 << 20  # pairs of an n-gram and an empty place that are hashed at once
_LOW = np.uint64(0xFFFFFFFF)
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class MinHash:
    """Settings of the search for near copies.

    Two texts usually share a key from a similarity of about (1/bands)^(1/rows) on. Keys alone also
    join many pairs that are well below it, so `agree` compares all places. Set it a little below
    the wanted similarity: the share of equal places deviates from it by about 0.03.
    """

    words: int = 5  # in an n-gram
    bands: int = 16
    rows: int = 8  # places in a band
    agree: float = 0.75  # least share of equal places of two texts that share a key
    seed: int = 1
    engine: Literal["numpy", "rensa"] = "numpy"

    def __post_init__(self) -> None:
        for name in ("words", "bands", "rows"):
            if getattr(self, name) < 1:
                raise PenstockError(f"MinHash: {name} is {getattr(self, name)}; give at least 1.")
        if not 0 <= self.agree <= 1:
            raise PenstockError(f"MinHash: agree is {self.agree}; give a share from 0 to 1.")
        if self.engine not in _ENGINES:
            raise PenstockError(
                f"MinHash: engine {self.engine!r} is not known. Use one of {', '.join(_ENGINES)}."
            )

    @property
    def places(self) -> int:
        return self.bands * self.rows

    def identity(self) -> dict[str, Json]:
        """Return all that the keys depend on. Equal identities give equal keys on any machine."""
        version = 0 if self.engine == "numpy" else int(_rensa().ALGORITHM_VERSION)
        return {"kind": "minhash", "revision": REVISION, **asdict(self), "engine version": version}

    def key_probability(self, similarity: float) -> float:
        """Return the probability that two texts of this Jaccard similarity share a key."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def compute_signatures(texts: Sequence[str], config: MinHash) -> U32:
    """Return one row per text. A row depends on its own text only, not on the batch."""
    rows = np.full((len(texts), config.places), EMPTY, np.uint32)
    for first, last in batch_ranges(texts, _BATCH_CHARACTERS):
        ngrams, offsets = ngram_hashes(hash_words(texts[first:last]), config.words)
        filled = np.flatnonzero(np.diff(offsets))
        if len(filled):
            bounds = np.append(offsets[filled], offsets[-1])
            rows[first + filled] = _ENGINES[config.engine](ngrams, bounds, config)
    return rows


def band_keys(rows: U32, config: MinHash) -> U64:
    """Return the key of each band of each signature, shape (bands, texts)."""
    bands = rows.reshape(len(rows), config.bands, config.rows)
    keys = np.zeros(bands.shape[:2], np.uint64)
    for row in range(config.rows):
        keys ^= bands[:, :, row]
        keys = mix64(keys + np.uint64(_GOLDEN))
    return np.ascontiguousarray(keys.T)


def has_words(rows: U32) -> npt.NDArray[np.bool_]:
    """Return False for texts without words: they are copies of nothing."""
    return np.asarray((rows != EMPTY).any(axis=1))


def _sketch(ngrams: U64, bounds: Int64, config: MinHash) -> U32:
    """Return the rows of non-empty sets; set i is ngrams[bounds[i]:bounds[i + 1]]."""
    counts = np.diff(bounds)
    places = config.places
    rows = np.full((len(counts), places), EMPTY, np.uint32)
    empty = np.ones(rows.shape, bool)
    for turn in range(_ROUNDS):
        open_sets = np.flatnonzero(empty.any(axis=1))
        if not len(open_sets):
            return rows
        members = _members(bounds, open_sets)
        hashes = mix64(ngrams[members] + _salt(config.seed, turn))
        place = ((hashes >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32)
        flat = np.repeat(open_sets * places, counts[open_sets]) + place.astype(np.int64)
        free = empty.ravel()[flat]
        np.minimum.at(rows.ravel(), flat[free], (hashes[free] & _LOW).astype(np.uint32))
        empty.ravel()[flat] = False
    _fill(rows, empty, ngrams, bounds, config)
    return rows


def _fill(
    rows: U32, empty: npt.NDArray[np.bool_], ngrams: U64, bounds: Int64, config: MinHash
) -> None:
    """Fill each empty place with the smallest hash of its set under the place's own function."""
    sets, places = np.nonzero(empty)
    salts = np.array([_salt(config.seed, _ROUNDS + k) for k in range(config.places)], np.uint64)
    counts = np.diff(bounds)[sets]
    before = np.cumsum(counts)
    first = 0
    while first < len(sets):
        taken = before[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(before, taken + _PAIRS, side="right")))
        members = _members(bounds, sets[first:last])
        hashes = mix64(ngrams[members] + np.repeat(salts[places[first:last]], counts[first:last]))
        starts = before[first:last] - counts[first:last] - taken
        rows[sets[first:last], places[first:last]] = np.minimum.reduceat(hashes & _LOW, starts)
        first = last


def _members(bounds: Int64, sets: Int64) -> Int64:
    """Return the indices of the n-grams of these sets, set after set."""
    counts = bounds[sets + 1] - bounds[sets]
    ends = np.cumsum(counts)
    return np.asarray(np.arange(ends[-1]) + np.repeat(bounds[sets] - ends + counts, counts))


def _salt(seed: int, turn: int) -> np.uint64:
    both = np.array([(seed * _GOLDEN + turn * 0xD1B54A32D192ED03) % (1 << 64)], np.uint64)
    return np.uint64(mix64(both)[0])


def _rensa_sketch(ngrams: U64, bounds: Int64, config: MinHash) -> U32:
    matrix = _rensa().digest_matrix_from_flat_token_hashes(
        ngrams, bounds.astype(np.uint64), config.places, config.seed
    )
    return np.array(matrix.to_rows(), np.uint32)


def _rensa() -> Any:  # a Rust class without stubs
    sketch = extra("rensa", "MinHash engine 'rensa' (engine 'numpy' needs nothing)").RMinHash
    if not hasattr(sketch, "ALGORITHM_VERSION"):
        raise PenstockError(
            "MinHash: the installed rensa does not report the version of its algorithm, so its "
            "signatures cannot be distinguished from those of other versions. "
            "Install it again with: pip install -U 'penstock[data]'"
        )
    return sketch


_ENGINES = {"numpy": _sketch, "rensa": _rensa_sketch}
