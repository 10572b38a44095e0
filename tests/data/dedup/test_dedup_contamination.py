"""Evaluation texts in documents: against Python's own sets of word runs, and the reasons given."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup.contamination import Overlap, find_contaminated, index_evaluations
from penstock.errors import PenstockError

SENTENCE = "The quick brown fox jumps over the lazy dog while the cat sleeps all day long"
WORDS = st.lists(st.sampled_from("abc"), max_size=12)


def runs(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]


@settings(max_examples=80)
@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3))
def test_overlaps_equal_a_brute_force_search(
    documents: list[list[str]], one: list[list[str]], two: list[list[str]]
) -> None:
    config = Overlap(words=6, shortest=4)
    known = set()
    for words in one + two:
        if len(words) >= config.shortest:
            known |= set(runs(words, min(config.words, len(words))))
    expected = {}
    for number, words in enumerate(documents):
        count = sum(run in known for n in (4, 5, 6) for run in runs(words, n))
        if count:
            expected[number] = count
    against = index_evaluations(
        {"one": [" ".join(w) for w in one], "two": [" ".join(w) for w in two]}, config
    )
    found = find_contaminated([" ".join(words) for words in documents], against)
    assert {hit.document: hit.ngrams for hit in found} == expected
    for hit in found:
        source = {"one": one, "two": two}[hit.evaluation][hit.text]
        assert " ".join(hit.words.split()) in " ".join(source)
    assert against.skipped == {
        "one": sum(len(w) < 4 for w in one),
        "two": sum(len(w) < 4 for w in two),
    }


def test_thirteen_words_whatever_their_case_and_punctuation() -> None:
    against = index_evaluations({"foxes": ["Nothing here.", SENTENCE]}, Overlap())
    quoted = SENTENCE.upper().replace(" ", ",\n ")
    words = SENTENCE.split()
    found = find_contaminated(
        ["clean", f"As they say: {quoted}!", " ".join(words[:13]), " ".join(words[:12])], against
    )
    assert [(hit.document, hit.text, hit.ngrams) for hit in found] == [(1, 1, 4), (2, 1, 1)]
    assert found[0].reason == "overlaps evaluation foxes"
    assert found[0].words == ",\n ".join(word.upper() for word in words[:13])


def test_a_short_evaluation_is_searched_for_whole_and_a_shorter_one_is_skipped() -> None:
    short = "How many legs does a healthy spider have"
    against = index_evaluations({"quiz": [short, "Yes or no"], "empty": []}, Overlap())
    found = find_contaminated(
        [f"Q: {short}? Yes or no.", "many legs does a healthy spider have"], against
    )
    assert [(hit.document, hit.words) for hit in found] == [(0, short)]
    assert against.skipped == {"quiz": 1, "empty": 0}
    assert find_contaminated(["anything"], index_evaluations({}, Overlap())) == []


def test_a_text_without_spaces_is_compared_by_characters() -> None:
    question = "太阳系中最大的行星是哪一颗请选择"
    against = index_evaluations({"zh": [question]}, Overlap())
    assert [hit.document for hit in find_contaminated(["无关", f"题目{question}。"], against)] == [
        1
    ]


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(PenstockError, match="shortest is 14 and words is 13"):
        Overlap(shortest=14)
