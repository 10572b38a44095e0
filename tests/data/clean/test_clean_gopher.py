"""Gopher's measures against plain Python on the same words, and each threshold by example."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean import ngrams, words
from penstock.data.clean.batch import TextBatch
from penstock.data.clean.config import Filters, GopherQuality, GopherRepetition
from penstock.data.clean.filters import run_filters

QUALITY = Filters(gopher_repetition=None, c4=None, fineweb=None)
REPETITION = Filters(gopher_quality=None, c4=None, fineweb=None)
FEW = st.lists(st.sampled_from(["a", "b", "ab", "to", "the,", "x.\n"]), max_size=60).map(" ".join)


def top(parts: list[str], n: int) -> int:
    runs = [" ".join(parts[i : i + n]) for i in range(len(parts) - n + 1)]
    if not runs:
        return 0
    best, count = Counter(runs).most_common(1)[0]
    return len(best) * count


def repeated(parts: list[str], n: int) -> int:
    seen: set[tuple[str, ...]] = set()
    at = total = 0
    while at + n <= len(parts):
        run_filters = tuple(parts[at : at + n])
        if run_filters in seen:
            total += len("".join(run_filters))
            at += n
        else:
            seen.add(run_filters)
            at += 1
    return total


@given(st.lists(FEW, min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_repeated_ngrams_equal_plain_python(texts: list[str]) -> None:
    found = words.split_words(texts)
    for repeat in ngrams.find_repeats(found, ngrams.word_hashes(found), [2, 3, 4, 5]):
        parts = found.strings()
        assert ngrams.top_characters(found, repeat).tolist() == [top(p, repeat.n) for p in parts]
        assert ngrams.repeated_characters(found, repeat).tolist() == [
            repeated(p, repeat.n) for p in parts
        ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_equal_slices_have_equal_hashes_and_others_not(values: list[int]) -> None:
    slices = ngrams.SliceHashes(np.array(values, np.uint64))
    spans = [(a, b) for a in range(len(values)) for b in range(a + 1, len(values) + 1)]
    starts, ends = np.array(spans).T
    hashes = slices.hashes(starts, ends).tolist()
    by_content = {tuple(values[a:b]): h for (a, b), h in zip(spans, hashes, strict=True)}
    assert all(by_content[tuple(values[a:b])] == h for (a, b), h in zip(spans, hashes, strict=True))
    assert len(set(by_content.values())) == len(by_content)


PROSE = " ".join(
    f"the quick fox number{chr(97 + i % 26)}{chr(97 + i // 26)} runs to them" for i in range(30)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROSE, None),
        ("the fox and " * 16, "few_words"),
        ("the to a I " * 20, "short_words"),
        ("the to " + "extraordinarily " * 60, "long_words"),
        (PROSE + " #" * 40, "hashes"),
        (PROSE + " word..." * 40, "ellipses"),
        ("\n".join(["- the fox runs to them"] * 20), "bullet_lines"),
        ("\n".join([PROSE[:60] + " they…"] * 4 + [PROSE] * 4), "ellipsis_lines"),
        (PROSE + " 12" * 60, "few_alphabetic_words"),
        (" ".join(["quick foxes jumping"] * 20) + " the", "few_stop_words"),
    ],
)
def test_quality_names_the_rule(text: str, reason: str | None) -> None:
    assert run_filters([text], QUALITY).reason(0) == (reason and f"gopher_quality.{reason}")


def test_quality_measures() -> None:
    verdicts = run_filters(["- the cat sat.\nOn #1 mat..."], QUALITY)
    found = {k.split(".")[1]: float(v[0]) for k, v in verdicts.measures.items()}
    # - the cat sat . On # 1 mat ...
    assert found == {
        "words": 6,
        "word_characters": pytest.approx(15 / 6),
        "hashes_per_word": 0.1,
        "ellipses_per_word": 0.1,
        "bullet_lines": 0.5,
        "ellipsis_lines": 0.5,
        "alphabetic_words": 0.5,
        "stop_words": 1,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("one here\n\n" * 4 + "two there\n\nthree more", "duplicate_paragraphs"),
        ("a\n\n" + "long paragraph here\n\n" * 2 + "b\n\nc\n\nd", "duplicate_paragraph_characters"),
        ("one here\n" * 4 + "two there\nthree more", "duplicate_lines"),
        ("a\nb\nc\n" + "a long line that is here\n" * 2 + "d\ne", "duplicate_line_characters"),
        ("big red " * 3 + "fox runs over that hill at night", "top_2_words"),
    ],
)
def test_repetition_names_the_rule(text: str, reason: str) -> None:
    assert run_filters([text], REPETITION).reason(0) == f"gopher_repetition.{reason}"


def test_repeated_ngrams_are_found() -> None:
    phrase = "alpha bravo charlie delta echo foxtrot golf hotel india juliet"
    other = " ".join(f"word{chr(97 + i)}" for i in range(20))
    config = Filters(gopher_repetition=GopherRepetition(top=()), gopher_quality=None, c4=None,
                     fineweb=None)  # fmt: skip
    text = f"{phrase} {other} {phrase}"
    verdicts = run_filters([text, f"{phrase} {other}"], config)
    assert verdicts.reason(0) == "gopher_repetition.duplicate_5_words"
    assert verdicts.reason(1) is None
    expected = len(phrase.replace(" ", "")) / len(text)
    assert verdicts.measures["gopher_repetition.duplicate_10_words"][0] == pytest.approx(expected)


def test_stop_words_can_be_configured() -> None:
    config = Filters(None, GopherQuality(stop_words=("quick", "fox", "zebra")), None, None)
    assert run_filters([PROSE], config).measures["gopher_quality.stop_words"][0] == 2


def test_a_batch_has_one_split() -> None:
    assert TextBatch(["a b", "c"]).word_counts.tolist() == [2, 1]


def test_a_huge_document_leaves_no_table_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {inverse: ngrams._powers(inverse, 1000).tolist() for inverse in (False, True)}
    ngrams._table.cache_clear()
    monkeypatch.setattr(ngrams, "_KEPT", 999)
    for inverse, powers in expected.items():
        assert ngrams._powers(inverse, 1000).tolist() == powers
    assert ngrams._table.cache_info().currsize == 0
