"""Trained tokenizers: the sample does not depend on order, and the fast engine is native."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.special import END
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.data.tokenize.train import (
    MIN_VOCAB,
    SPECIAL,
    SPLIT_PATTERN,
    TextSample,
    train_tokenizer,
)
from penstock.errors import PenstockError

TEXTS = [
    f"def add_{name}(self):\n    return self.{name} + {i}\n\nThe {name}'s naïve café: हिन्दी\n"
    for i, name in enumerate(["one", "two", "three", "grün"] * 20)
]


@cache
def trained() -> bytes:
    return train_tokenizer(TEXTS, 900)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=40),
    most=st.integers(0, 60),
    cut=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_the_sample_is_the_same_in_any_order_and_in_parts(
    texts: list[str], most: int, cut: int, seed: int
) -> None:
    whole = TextSample(most)
    whole.add(texts)
    shuffled = random.Random(seed).sample(texts, len(texts))
    joined = TextSample(most)
    for part in (shuffled[:cut], shuffled[cut:]):
        one = TextSample(most)
        one.add(part)
        joined.add(one.texts())
    assert joined.texts() == whole.texts()
    size = sum(len(text.encode()) for text in whole.texts())
    everything = sum(len(text.encode()) for text in texts)
    assert min(most, everything) <= size <= max(most, 1) + 9 * 4  # one text more at most


def test_training_depends_on_the_documents_alone() -> None:
    assert train_tokenizer(TEXTS, 400) == train_tokenizer(reversed(TEXTS), 400)
    assert train_tokenizer(TEXTS, 400, sample_bytes=500) != train_tokenizer(TEXTS, 400)


def test_special_tokens_come_first_and_text_comes_back() -> None:
    engine = Engine.from_str(trained().decode())
    assert [engine.token_to_id(token) for token in SPECIAL] == list(range(len(SPECIAL)))
    tokenizer = Tokenizer(trained())
    assert (tokenizer.end, tokenizer.special.end) == (0, END)
    for text in [*TEXTS[:3], "<|end|><|user|>", "\0\x7f é 😀 \r\n\t x", ""]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_how_text_is_cut() -> None:
    engine = Engine.from_str(trained().decode())

    def pieces(text: str) -> list[str]:
        cuts = engine.pre_tokenizer.pre_tokenize_str(text)
        return [text[start:stop] for _, (start, stop) in cuts]

    assert pieces("It's 12345 naïve हिन्दी words.\n\n    return x") == [
        *("It's", " ", "123", "45", " naïve", " हिन्दी", " words", ".\n\n", "   ", " return", " x")
    ]
    assert "".join(pieces("a/b\r\n\t c")) == "a/b\r\n\t c"
    assert SPLIT_PATTERN in Engine.from_str(trained().decode()).to_str().encode().decode(
        "unicode_escape"
    )


@cache
def fast() -> FastTokenizer:
    pytest.importorskip("fastokens")
    return FastTokenizer(trained(), ["fastokens"])


def test_the_fast_engine_is_used_and_has_native_code_for_the_pattern() -> None:
    # `fastokens-spelled` is for patterns that it gives to PCRE2, at a quarter of the speed.
    assert fast().engine == "fastokens", fast().notes


@settings(max_examples=120, deadline=None)
@given(
    text=st.lists(
        st.text(max_size=6)
        | st.sampled_from(
            ["'s", "'LL", "aB", "ǅ", "ʰ", "\u0301", "  ", "\n ", "\r\n", "/", "_", END]
        )
        | st.sampled_from(
            ["def ", "self.", "हिन्दी", "日本", "١٢٣", "1234", "\u180e", "\xa0", "ſ", "😀"]
        ),
        max_size=14,
    ).map("".join)
)
def test_ids_are_those_of_tokenizers(text: str) -> None:
    expected = Tokenizer(trained()).encode(text)
    assert fast().encode_batch([text]).ids.tolist() == expected.tolist()


def test_mistakes_and_progress() -> None:
    with pytest.raises(PenstockError, match=f"need {MIN_VOCAB}"):
        train_tokenizer(TEXTS, MIN_VOCAB - 1)
    with pytest.raises(PenstockError, match="no text to train"):
        train_tokenizer([], 300)
    told: list[tuple[str, int, int]] = []
    train_tokenizer(TEXTS, 300, lambda what, done, total: told.append((what, done, total)))
    assert told[0] == ("train tokenizer", 0, 80)
    assert told[-1] == ("train tokenizer", 80, 80)
