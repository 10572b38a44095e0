"""Words and their runs: what a word is, and hashes that stand for words and for nothing else."""

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup import words as module
from penstock.data.dedup.words import LONGEST, hash_words, ngram_hashes

ANY = st.text(st.characters() | st.sampled_from("ab \n.é漢ก\ud800\0"), max_size=60)
FEW = st.text(st.sampled_from("abAB1 .漢"), max_size=40)


def written(text: str) -> list[str]:
    split = hash_words([text])
    return [split.text(i, i) for i in range(len(split.hashes))]


@given(st.text(st.characters(max_codepoint=127), max_size=LONGEST))
def test_ascii_words_are_letters_and_digits(text: str) -> None:
    assert written(text) == re.findall(r"[A-Za-z0-9]+", text)


def test_scripts_and_punctuation() -> None:
    assert written("Ça — “naïve”, fußball… 3,5 €") == ["Ça", "naïve", "fußball", "3", "5"]
    assert written("漢字とかな。OK漢x") == [*"漢字とかな", "OK", "漢", "x"]
    assert written("한국어 문서") == ["한국어", "문서"]
    assert written("ไทย 🎉 ok") == [*"ไทย", "ok"]


def test_case_and_composition_do_not_matter_and_spelling_does() -> None:
    same = hash_words(["École ΑΒΓ Привет", "e\u0301cole αβγ ПРИВЕТ"])
    assert np.array_equal(same.hashes[:3], same.hashes[3:])
    assert len(set(hash_words(["ab ba aab abb a b aa bb"]).hashes.tolist())) == 8


def test_long_words_are_cut() -> None:
    assert [len(w) for w in written("x" * (2 * LONGEST + 5))] == [LONGEST, LONGEST, 5]


@given(st.lists(ANY, max_size=6))
def test_a_text_has_the_same_words_whatever_its_neighbours(texts: list[str]) -> None:
    together = hash_words(texts)
    assert len(together.offsets) == len(texts) + 1
    for i, text in enumerate(texts):
        mine = together.hashes[together.offsets[i] : together.offsets[i + 1]]
        assert np.array_equal(mine, hash_words([text]).hashes)


def test_pieces_of_the_running_sum_do_not_change_hashes() -> None:
    text = " ".join(str(n) for n in range(30_000))
    cut = hash_words([text]).hashes
    one_by_one = [hash_words([str(n)]).hashes[0] for n in range(0, 30_000, 997)]
    assert len(text) > 4 * module._PIECE
    assert np.array_equal(cut[::997], one_by_one)


@settings(max_examples=60)
@given(st.lists(FEW, max_size=5), st.integers(1, 4))
def test_ngrams_equal_plain_python(texts: list[str], n: int) -> None:
    hashes, offsets = ngram_hashes(hash_words(texts), n)
    meaning: dict[int, tuple[str, ...]] = {}
    for i, text in enumerate(texts):
        split = [w.lower() for w in written(text)]
        expected = [tuple(split[k : k + n]) for k in range(max(1, len(split) - n + 1)) if split]
        found = hashes[offsets[i] : offsets[i + 1]].tolist()
        assert len(found) == len(expected)
        for value, run in zip(found, expected, strict=True):
            assert meaning.setdefault(value, run) == run
    assert len(set(meaning.values())) == len(meaning)


def test_the_hashes_are_the_same_on_every_machine() -> None:
    split = hash_words(["The penstock feeds the turbine. 漢字 École"])
    assert [hex(h) for h in split.hashes[:2].tolist()] == PINNED_WORDS
    assert hex(int(np.bitwise_xor.reduce(ngram_hashes(split, 5)[0]))) == PINNED_RUNS


PINNED_WORDS = ["0xffd7dd4c1384c670", "0x89eb83617b3a0c0a"]
PINNED_RUNS = "0xb72996e52436026a"
