"""Tokenization with the ids of Hugging Face's `tokenizers`, from a faster engine if it is exact.

`tokenizers` is the reference. A fast engine is used for a tokenizer.json only after its ids were
equal to the reference's on texts that are hard to tokenize (`hard_sample.py`). Otherwise it is
refused, and `notes` say why. Since the ids are the same, the engine is not part of a dataset's
identity.

Text is only text: a document that spells out a special token does not get its id. Truncation,
padding and dropout in the file are ignored, since they would silently lose or change text. Calls
run on one thread: a build is parallel over processes.
"""

import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.data.format.manifest import dtype_for
from penstock.data.format.types import Tokens
from penstock.data.tokenize.hard_sample import hard_texts
from penstock.data.tokenize.pcre_white_space import spell_out_white_space
from penstock.data.tokenize.special import TokenizerJson, added_tokens, parse_tokenizer
from penstock.errors import PenstockError

REFERENCE = "tokenizers"


@dataclass(frozen=True)
class FlatTokens:
    """The ids of several documents; document i is ids[starts[i] : starts[i + 1]]."""

    ids: Tokens
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def document(self, at: int) -> Tokens:
        return self.ids[self.starts[at] : self.starts[at + 1]]


_Encode: TypeAlias = Callable[[list[str]], FlatTokens]


class FastTokenizer:
    """A tokenizer that uses the fastest exact engine.

    `engine` is its name; `notes` say why others were refused.
    """

    def __init__(self, content: bytes, engines: Sequence[str] | None = None) -> None:
        """Try `engines` in order (default: all fast ones), and last the reference."""
        config = parse_tokenizer(content)
        reference, self.vocab = _reference(config)
        self.dtype = np.dtype(dtype_for(self.vocab))
        self.engine, self._encode = REFERENCE, reference
        self._reference = reference
        judge = _EngineChecker(config, reference)
        for name in FAST_ENGINES if engines is None else engines:
            if name == REFERENCE:
                break
            encode = judge.accepted(name)
            if encode:
                self.engine, self._encode = name, encode
                break
        self.notes = tuple(judge.notes)
        self.fallbacks = 0  # batches that the reference encoded after the fast engine failed

    def encode_batch(self, texts: Sequence[str]) -> FlatTokens:
        """Return the ids of all texts, without special tokens before or after them."""
        listed = list(texts)
        try:
            flat = self._encode(listed)
        except BaseException as error:
            if not _is_engine_failure(error):
                raise
            if problem := _not_unicode(listed):
                raise PenstockError(problem) from error
            if self.engine == REFERENCE:
                raise
            self.fallbacks += 1
            flat = self._reference(listed)
        return FlatTokens(flat.ids.astype(self.dtype, copy=False), flat.starts)


def _reference(config: TokenizerJson) -> tuple[_Encode, int]:
    from penstock.data.tokenize.tokenizer import load_engine, vocabulary_size  # slow to import

    engine = load_engine(config)

    def encode(texts: list[str]) -> FlatTokens:
        batch = engine.encode_batch_fast(texts, add_special_tokens=False)
        parts = [np.array(encoding.ids, dtype=np.uint32) for encoding in batch]
        starts = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)
        return FlatTokens(np.concatenate([np.empty(0, np.uint32), *parts]), starts)

    return encode, vocabulary_size(engine)


def _gigatoken(config: TokenizerJson) -> _Encode:
    gigatoken = importlib.import_module("gigatoken")
    # It always gives special tokens their ids, so they are hidden from it.
    engine = gigatoken.Tokenizer.from_json(
        json.dumps(config | {"added_tokens": _plain_added(config)})
    )

    def encode(texts: list[str]) -> FlatTokens:
        if not texts:
            return FlatTokens(np.empty(0, np.uint32), np.zeros(1, np.int64))
        layout = engine.encode_batch(texts, parallel=False).layout
        starts = np.asarray(layout.offsets.data, dtype=np.int64)
        ids = np.asarray(layout.content.data)[starts[0] : starts[-1]]
        return FlatTokens(ids, starts - starts[0])

    return encode


def _fastokens(config: TokenizerJson) -> _Encode:
    # Must be set before its first use in the process; a user's own setting wins.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    os.environ.setdefault("FASTOKENS_SPIN_US", "0")  # its idle threads would burn a core
    engine = importlib.import_module("fastokens").Tokenizer.from_json_str(json.dumps(config))

    def encode(texts: list[str]) -> FlatTokens:
        ids, starts = engine.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=True
        )
        return FlatTokens(np.frombuffer(ids, "<u4"), np.frombuffer(starts, "<u8").astype(np.int64))

    return encode


def _fastokens_spelled(config: TokenizerJson) -> _Encode:
    """Return fastokens for patterns that it has no native code for and passes to PCRE2."""
    return _fastokens(spell_out_white_space(config))


# Fastest first; gigatoken is slow until it has seen much text.
FAST_ENGINES = {
    "fastokens": _fastokens,
    "gigatoken": _gigatoken,
    "fastokens-spelled": _fastokens_spelled,
}


def _plain_added(config: TokenizerJson) -> list[TokenizerJson]:
    return [token for token in added_tokens(config) if not token.get("special")]


class _EngineChecker:
    """Check of engines against the reference; `notes` say why an engine was refused."""

    def __init__(self, config: TokenizerJson, reference: _Encode) -> None:
        self._config = config
        self._reference = reference
        self.notes: list[str] = []

    @cached_property
    def _texts(self) -> list[str]:
        return hard_texts([str(token["content"]) for token in added_tokens(self._config)])

    @cached_property
    def _expected(self) -> FlatTokens:
        return self._reference(self._texts)

    def accepted(self, name: str) -> _Encode | None:
        if name not in FAST_ENGINES:
            known = ", ".join([*FAST_ENGINES, REFERENCE])
            raise PenstockError(f"There is no tokenizer engine {name!r}. Known engines: {known}.")
        try:
            encode = FAST_ENGINES[name](self._config)
            found = encode(self._texts)
        except ImportError as error:
            self.notes.append(f"{name} is not installed ({error}): pip install 'penstock[data]'")
            return None
        except BaseException as error:
            if not _is_engine_failure(error):
                raise
            self.notes.append(f"{name} refused: {_first_line(error)}")
            return None
        wrong = first_difference(self._expected, found)
        if wrong is not None:
            self.notes.append(
                f"{name} refused: its ids differ from those of {REFERENCE}, "
                f"first in text {wrong} of the sample: {self._texts[wrong][:60]!r}"
            )
            return None
        return encode


def first_difference(expected: FlatTokens, found: FlatTokens) -> int | None:
    """Return the first document whose ids differ, or None."""
    if np.array_equal(expected.starts, found.starts) and np.array_equal(expected.ids, found.ids):
        return None
    if len(expected) != len(found):
        return min(len(expected), len(found))
    for at in range(len(expected)):
        if not np.array_equal(expected.document(at), found.document(at)):
            return at
    return 0  # the same ids, but the offsets skip some of them


def _is_engine_failure(error: BaseException) -> bool:
    """Return whether an engine failed: by an exception, or a Rust panic (not an Exception)."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _not_unicode(texts: list[str]) -> str:
    """Return a message if a text has lone surrogates, else an empty string.

    Each engine reports them in its own way.
    """
    for at, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return (
                f"Text {at} of the batch is not valid Unicode: {error.reason} at character "
                f"{error.start}. Decode the source strictly, or drop the document."
            )
    return ""
