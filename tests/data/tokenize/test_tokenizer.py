import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.tokenize.tokenizer import END, MIN_VOCAB, Tokenizer, train_code_tokenizer
from penstock.errors import PenstockError

CODE = [
    f"def add_{name}(self, value):\n    if value == {i}:\n        return self.add_{name}(value)\n"
    for i, name in enumerate(["one", "two", "three", "grün"] * 5)
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_code_tokenizer(CODE, 400)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) <= len(text.encode())
    assert (ids < tokenizer.vocab).all()


def test_code_is_cut_as_code(tokenizer):
    def pieces(text):
        return [tokenizer.decode([token]) for token in tokenizer.encode(text)]

    assert pieces("self.add_one(value):\n        return") == [
        *("self", ".", "add_one", "(", "value", "):", "\n        ", "return")
    ]
    assert all(len(piece) <= 3 for piece in pieces("1234567"))


def test_text_that_spells_the_end_is_not_the_end(tokenizer):
    ids = tokenizer.encode(f"a {END} b")
    assert tokenizer.end not in ids
    assert tokenizer.decode(ids) == f"a {END} b"
    assert tokenizer.decode([tokenizer.end]) == END


def test_a_batch_equals_its_texts_one_by_one(tokenizer):
    for text, ids in zip(CODE, tokenizer.encode_batch(CODE), strict=True):
        assert np.array_equal(ids, tokenizer.encode(text))


def test_the_stored_tokenizer_is_the_same_tokenizer(tokenizer):
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.vocab, again.end) == (tokenizer.vocab, tokenizer.end)
    assert np.array_equal(again.encode(CODE[0] + END), tokenizer.encode(CODE[0] + END))
    assert again.to_json() == tokenizer.to_json()


def test_training_does_not_depend_on_threads(monkeypatch):
    jsons = set()
    for setting in ("false", "true", ""):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", setting)
        jsons.add(train_code_tokenizer(CODE, 400).to_json())
        assert os.environ["TOKENIZERS_PARALLELISM"] == setting
    assert len(jsons) == 1


def test_the_thread_setting_is_left_decided(tokenizer, monkeypatch):
    """Undecided, the engine would warn in every process forked later."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    tokenizer.encode("x")
    assert os.environ["TOKENIZERS_PARALLELISM"] == ""


def test_bad_vocabularies_and_tokenizers_are_refused(tokenizer):
    assert train_code_tokenizer(["ab"], MIN_VOCAB).vocab == MIN_VOCAB
    with pytest.raises(PenstockError, match="256 is too small"):
        train_code_tokenizer(CODE, 256)
    renamed = tokenizer.to_json().replace(END.encode(), b"<|stop|>")
    with pytest.raises(PenstockError, match=r"no <\|end\|> token"):
        Tokenizer.from_json(renamed)
