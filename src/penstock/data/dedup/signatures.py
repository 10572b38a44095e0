"""MinHash signatures: the more word runs two texts share, the more places they agree in.

The share of equal places of two signatures estimates the Jaccard similarity of the two sets. Bands
of neighbouring places become keys; two texts with any key in common are taken for copies.

`numpy` is our own fast similarity sketch (Dahlgaard, Knudsen and Thorup, FOCS 2017): a run falls
into one place a round and the least value there stays; what is empty after the rounds takes the
least of all runs under its own hash. So the cost is that of the runs, not runs × places.
`rensa` is the same idea in Rust with other hash functions. The values differ, so the engine is part
of `identity`: keys of two engines never meet.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.words import U64, Int64, mixed, ngrams, words
from penstock.data.format.manifest import Json
from penstock.data.workers.text_batches import batch_ranges
from penstock.errors import PenstockError
from penstock.extras import extra

U32 = npt.NDArray[np.uint32]
# A change in words, runs, places or keys needs a new number.
REVISION = 1
EMPTY = 0xFFFFFFFF  # every place of a text without words

_ROUNDS = 3
_BATCH_CHARACTERS = 1 << 17  # fits a core's cache with what is computed from it
_PAIRS = 1 << 20  # of a run and an empty place, hashed at once
_LOW = np.uint64(0xFFFFFFFF)
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class MinHash:
    """Copies share a key, which they do from about (1/bands)^(1/rows) of their runs on, and agree.

    Keys alone also join many pairs well below; `agree` looks at all places. A little under the
    similarity that is meant: the share of equal places strays by about 0.03 from it.
    """

    words: int = 5  # in a run
    bands: int = 16
    rows: int = 8  # places in a band
    agree: float = 0.75  # share of equal places, at least, of two texts with a key in common
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
        """What the keys depend on: equal identities and texts give equal keys on any machine."""
        version = 0 if self.engine == "numpy" else int(_rensa().ALGORITHM_VERSION)
        return {"kind": "minhash", "revision": REVISION, **asdict(self), "engine version": version}

    def chance(self, similarity: float) -> float:
        """That two texts of this Jaccard similarity share a key."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def signatures(texts: Sequence[str], config: MinHash) -> U32:
    """One row a text. A row depends on its text alone, not on its neighbours."""
    rows = np.full((len(texts), config.places), EMPTY, np.uint32)
    for first, last in batch_ranges(texts, _BATCH_CHARACTERS):
        runs, offsets = ngrams(words(texts[first:last]), config.words)
        filled = np.flatnonzero(np.diff(offsets))
        if len(filled):
            bounds = np.append(offsets[filled], offsets[-1])
            rows[first + filled] = _ENGINES[config.engine](runs, bounds, config)
    return rows


def band_keys(rows: U32, config: MinHash) -> U64:
    """The key of each band of each signature: (bands, texts)."""
    bands = rows.reshape(len(rows), config.bands, config.rows)
    keys = np.zeros(bands.shape[:2], np.uint64)
    for row in range(config.rows):
        keys ^= bands[:, :, row]
        keys = mixed(keys + np.uint64(_GOLDEN))
    return np.ascontiguousarray(keys.T)


def has_words(rows: U32) -> npt.NDArray[np.bool_]:
    """False for texts without words: they are copies of nothing."""
    return np.asarray((rows != EMPTY).any(axis=1))


def _sketch(runs: U64, bounds: Int64, config: MinHash) -> U32:
    """Rows for sets that all have a run; set i is runs[bounds[i]:bounds[i + 1]]."""
    counts = np.diff(bounds)
    places = config.places
    rows = np.full((len(counts), places), EMPTY, np.uint32)
    empty = np.ones(rows.shape, bool)
    for turn in range(_ROUNDS):
        open_sets = np.flatnonzero(empty.any(axis=1))
        if not len(open_sets):
            return rows
        members = _members(bounds, open_sets)
        hashes = mixed(runs[members] + _salt(config.seed, turn))
        place = ((hashes >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32)
        flat = np.repeat(open_sets * places, counts[open_sets]) + place.astype(np.int64)
        free = empty.ravel()[flat]
        np.minimum.at(rows.ravel(), flat[free], (hashes[free] & _LOW).astype(np.uint32))
        empty.ravel()[flat] = False
    _fill(rows, empty, runs, bounds, config)
    return rows


def _fill(
    rows: U32, empty: npt.NDArray[np.bool_], runs: U64, bounds: Int64, config: MinHash
) -> None:
    """Each place that is still empty takes the least of all its set's runs under its own hash."""
    sets, places = np.nonzero(empty)
    salts = np.array([_salt(config.seed, _ROUNDS + k) for k in range(config.places)], np.uint64)
    counts = np.diff(bounds)[sets]
    before = np.cumsum(counts)
    first = 0
    while first < len(sets):
        taken = before[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(before, taken + _PAIRS, side="right")))
        members = _members(bounds, sets[first:last])
        hashes = mixed(runs[members] + np.repeat(salts[places[first:last]], counts[first:last]))
        starts = before[first:last] - counts[first:last] - taken
        rows[sets[first:last], places[first:last]] = np.minimum.reduceat(hashes & _LOW, starts)
        first = last


def _members(bounds: Int64, sets: Int64) -> Int64:
    """The indices of the runs of the given sets, set after set."""
    counts = bounds[sets + 1] - bounds[sets]
    ends = np.cumsum(counts)
    return np.asarray(np.arange(ends[-1]) + np.repeat(bounds[sets] - ends + counts, counts))


def _salt(seed: int, turn: int) -> np.uint64:
    both = np.array([(seed * _GOLDEN + turn * 0xD1B54A32D192ED03) % (1 << 64)], np.uint64)
    return np.uint64(mixed(both)[0])


def _rensa_sketch(runs: U64, bounds: Int64, config: MinHash) -> U32:
    matrix = _rensa().digest_matrix_from_flat_token_hashes(
        runs, bounds.astype(np.uint64), config.places, config.seed
    )
    return np.array(matrix.to_rows(), np.uint32)


def _rensa() -> Any:  # a Rust class without stubs
    sketch = extra("rensa", "MinHash engine 'rensa' (engine 'numpy' needs nothing)").RMinHash
    if not hasattr(sketch, "ALGORITHM_VERSION"):
        raise PenstockError(
            "MinHash: this rensa does not tell its algorithm's version, so its signatures cannot "
            "be told from others. Install it again with: pip install -U 'penstock[data]'"
        )
    return sketch


_ENGINES = {"numpy": _sketch, "rensa": _rensa_sketch}
