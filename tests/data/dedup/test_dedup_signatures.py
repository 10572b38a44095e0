"""Signatures: the sketch against one written out by hand, and what they promise of Jaccard."""

import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup import signatures as module
from penstock.data.dedup.signatures import EMPTY, MinHash, band_keys, compute_signatures, has_words
from penstock.errors import PenstockError

SMALL = MinHash(words=2, bands=4, rows=2)
TEXT = st.text(st.sampled_from("abc .\n漢"), max_size=60)
WIDE = 1 << 64


def by_hand(runs: list[int], config: MinHash) -> list[int]:
    """The sketch of one set, as its description reads."""

    def mix(x: int) -> int:
        x ^= x >> 33
        x = x * 0xFF51AFD7ED558CCD % WIDE
        x ^= x >> 33
        x = x * 0xC4CEB9FE1A85EC53 % WIDE
        return x ^ x >> 33

    def hashed(run: int, turn: int) -> int:
        salt = mix((config.seed * 0x9E3779B97F4A7C15 + turn * 0xD1B54A32D192ED03) % WIDE)
        return mix((run + salt) % WIDE)

    row: list[int | None] = [None] * config.places
    for turn in range(3):
        least: dict[int, int] = {}
        for run in runs:
            value = hashed(run, turn)
            place = (value >> 32) * config.places >> 32
            low = value & 0xFFFFFFFF
            least[place] = min(low, least.get(place, low))
        for place, low in least.items():
            if row[place] is None:
                row[place] = low
    return [
        min(hashed(run, 3 + place) & 0xFFFFFFFF for run in runs) if value is None else value
        for place, value in enumerate(row)
    ]


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, WIDE - 1), min_size=1, max_size=30), min_size=1, max_size=5)
)
def test_the_sketch_is_the_one_described(sets: list[list[int]]) -> None:
    bounds = np.cumsum([0, *map(len, sets)])
    rows = module._sketch(
        np.array([run for runs in sets for run in runs], np.uint64), bounds, SMALL
    )
    assert rows.tolist() == [by_hand(runs, SMALL) for runs in sets]


def test_many_pairs_are_filled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a b c", "d e f g h", "i", "j k"]
    whole = compute_signatures(texts, SMALL)
    monkeypatch.setattr(module, "_PAIRS", 3)
    assert np.array_equal(compute_signatures(texts, SMALL), whole)


@given(st.lists(TEXT, max_size=6), st.integers(1, 50))
def test_a_row_depends_on_its_text_alone(texts: list[str], batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH_CHARACTERS", batch)
        rows = compute_signatures(texts, SMALL)
    assert rows.shape == (len(texts), SMALL.places)
    for row, text in zip(rows, texts, strict=True):
        assert np.array_equal(row, compute_signatures([text], SMALL)[0])


@pytest.mark.parametrize("engine", ["numpy", "rensa"])
def test_repetition_and_order_of_ngrams_do_not_matter(engine: str) -> None:
    if engine == "rensa":
        pytest.importorskip("rensa")
    config = MinHash(words=1, engine=engine)  # type: ignore[arg-type]
    a, b, c = compute_signatures(["x y z w", "w z y x x x y", "x y z v"], config)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize("engine", ["numpy", "rensa"])
@pytest.mark.parametrize(("words", "new"), [(500, 30), (60, 4), (25, 2)])
def test_equal_places_estimate_jaccard(engine: str, words: int, new: int) -> None:
    if engine == "rensa":
        pytest.importorskip("rensa")
    rng = random.Random(words)
    config = MinHash(words=1, engine=engine)  # type: ignore[arg-type]
    pairs = 300
    texts = []
    for _ in range(pairs):
        own = rng.sample(range(10**9), words + new)
        texts += [" ".join(map(str, own[:words])), " ".join(map(str, own[new:]))]
    rows = compute_signatures(texts, config)
    true = (words - new) / (words + new)
    equal = (rows[0::2] == rows[1::2]).mean(axis=1)
    assert abs(equal.mean() - true) < 0.01
    assert equal.std() < 1.1 * (true * (1 - true) / config.places) ** 0.5
    keys = band_keys(rows, config)
    found = (keys[:, 0::2] == keys[:, 1::2]).any(axis=0).mean()
    assert abs(found - config.key_probability(true)) < 0.06


def test_a_key_is_shared_exactly_where_a_band_is_equal() -> None:
    rows = np.array([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 4, 3, 5, 6, 0, 8]], np.uint32)
    keys = band_keys(rows, SMALL)
    assert (keys[:, 0] == keys[:, 1]).tolist() == [True, False, True, False]


def test_texts_without_words_are_marked() -> None:
    rows = compute_signatures(["", "...", "word"], SMALL)
    assert (rows[:2] == EMPTY).all()
    assert has_words(rows).tolist() == [False, False, True]


def test_identity_holds_what_changes_the_values() -> None:
    pytest.importorskip("rensa")
    seen = [MinHash(), MinHash(engine="rensa"), MinHash(seed=2), MinHash(words=4), MinHash(bands=9)]
    assert len({str(config.identity()) for config in seen}) == len(seen)
    rows = [compute_signatures(["some words for a signature"], c)[0].tolist() for c in seen[:4]]
    assert len(set(map(tuple, rows))) == 4


def test_values_are_the_same_on_every_machine() -> None:
    rows = compute_signatures(
        ["The penstock feeds the turbine; the turbine is the accelerator."], SMALL
    )
    assert rows[0].tolist() == PINNED
    assert hex(int(band_keys(rows, SMALL)[0, 0])) == PINNED_KEY


def test_bad_settings_and_a_missing_engine_are_errors_with_a_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PenstockError, match="bands is 0; give at least 1"):
        MinHash(bands=0)
    with pytest.raises(PenstockError, match="agree is 80; give a share from 0 to 1"):
        MinHash(agree=80)
    with pytest.raises(
        PenstockError, match=r"engine 'rust' is not known\. Use one of numpy, rensa"
    ):
        MinHash(engine="rust")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(PenstockError, match=r"penstock\[data\]"):
        compute_signatures(["a text"], MinHash(engine="rensa"))


PINNED = [
    1613904797,
    2382877935,
    1688588822,
    709300720,
    517303014,
    2108485662,
    176779618,
    1517209289,
]
PINNED_KEY = "0xcfd79049b8177cd5"
