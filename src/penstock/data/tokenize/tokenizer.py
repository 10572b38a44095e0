"""Any tokenizer.json: encoding, decoding; and byte-level BPE that suits code: training.

With a tokenizer that is trained here any text comes back byte for byte. In `train`, a line break
and the indentation after it are one piece, so that indentation is one token however deep;
identifiers keep their underscores; digits go in groups of at most three. Merges never cross pieces.
The result depends on the texts alone: not on threads, nor on how the texts were batched.
`token_train.train_tokenizer` is for prose and code alike, and faster to encode with.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from penstock.data.tokenize.special import END, TokenizerJson, parse_tokenizer, read_special
from penstock.errors import PenstockError

MIN_VOCAB = 257  # every byte, and END

_PIECES = "|".join(
    [
        r"[\r\n]+[ \t]*",  # line breaks and the indentation that follows
        r" ?[\p{L}\p{M}_]+",  # words and identifiers
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{M}\p{N}_]+",  # operators and punctuation
        r"[^\S\r\n]+(?!\S)|\s+",  # other runs of blanks leave their last to the word
    ]
)


def load_engine(config: TokenizerJson) -> Engine:
    """Text is only text to it: a document that spells out a special token does not get its id."""
    try:
        engine = Engine.from_str(json.dumps(config))
    except BaseException as error:  # the library raises nothing more precise, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = str(error)[:200]
        raise PenstockError(f"tokenizers cannot load this tokenizer.json: {said}") from error
    engine.encode_special_tokens = True
    return engine


def vocabulary_size(engine: Engine) -> int:
    """One more than the largest id: some tokenizers leave ids out."""
    return max(engine.get_vocab(with_added_tokens=True).values(), default=-1) + 1


class Tokenizer:
    """`special` says which token ends a document, and the chat template."""

    def __init__(self, content: bytes) -> None:
        self.special = read_special(content)
        self._engine = load_engine(parse_tokenizer(content))
        self._content = content
        self.end: int = self.special.end_id
        self.vocab: int = vocabulary_size(self._engine)

    @staticmethod
    def from_json(content: bytes) -> "Tokenizer":
        return Tokenizer(content)

    def to_json(self) -> bytes:
        return self._content

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """The ids of each text, without a closing END."""
        with tokenizer_threads():
            batch = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in batch]

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of `ids`; special tokens read as themselves, broken UTF-8 as U+FFFD."""
        return self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def train_code_tokenizer(texts: Sequence[str], vocab: int) -> Tokenizer:
    """Learns merges until there are `vocab` tokens, or fewer when the texts give out."""
    if vocab < MIN_VOCAB:
        raise PenstockError(
            f"A vocabulary of {vocab} is too small: every byte and {END} need {MIN_VOCAB}."
        )
    return Tokenizer(train_bpe(texts, vocab, _PIECES, [END]))


def train_bpe(texts: Iterable[str], vocab: int, pattern: str, special: list[str]) -> bytes:
    """A tokenizer.json that cuts text by `pattern`; `special` get the first ids."""
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with tokenizer_threads():
        engine.train_from_iterator(texts, trainer)
    return engine.to_str().encode()


@contextmanager
def tokenizer_threads() -> Iterator[None]:
    """Threads for one batch, unless the user has chosen.

    Afterwards the setting is left empty, which the engine reads as a no: undecided, it would warn,
    and could hang, in a process that is forked later.
    """
    name = "TOKENIZERS_PARALLELISM"
    if os.environ.get(name):
        yield
        return
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ[name] = ""
