"""A tokenizer.json that encodes and decodes; and training of byte-level BPE for code.

A tokenizer trained here reproduces any text byte for byte. `train_code_tokenizer` treats a line
break and the indentation after it as one piece, so that indentation is one token however deep;
identifiers keep their underscores; digits are in groups of at most three. Merges never cross
pieces. The result depends only on the texts, not on threads or batches. `train.train_tokenizer` is
for prose and code alike, and encodes faster.
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
        r"[^\S\r\n]+(?!\S)|\s+",  # other white space leaves its last character to the next word
    ]
)


def load_engine(config: TokenizerJson) -> Engine:
    """Load the engine; a document that spells out a special token does not get its id."""
    try:
        engine = Engine.from_str(json.dumps(config))
    except BaseException as error:  # the library raises nothing more precise, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        message = str(error)[:200]
        raise PenstockError(f"tokenizers cannot load this tokenizer.json: {message}") from error
    engine.encode_special_tokens = True
    return engine


def vocabulary_size(engine: Engine) -> int:
    """Return the largest id plus one: some tokenizers skip ids."""
    return max(engine.get_vocab(with_added_tokens=True).values(), default=-1) + 1


class Tokenizer:
    """A tokenizer with a known end token. `special` also has the chat template."""

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
        """Return the ids of each text, without a closing END."""
        with tokenizer_threads():
            batch = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in batch]

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of `ids`; special tokens stay as text, broken UTF-8 becomes U+FFFD."""
        return self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def train_code_tokenizer(texts: Sequence[str], vocab: int) -> Tokenizer:
    """Train a tokenizer for code with `vocab` tokens, or fewer if the texts are too small."""
    if vocab < MIN_VOCAB:
        raise PenstockError(
            f"A vocabulary of {vocab} is too small: every byte and {END} need {MIN_VOCAB}."
        )
    return Tokenizer(train_bpe(texts, vocab, _PIECES, [END]))


def train_bpe(texts: Iterable[str], vocab: int, pattern: str, special: list[str]) -> bytes:
    """Train BPE on texts split by `pattern`. `special` get the first ids of the tokenizer.json."""
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
    """Let the engine use threads for one batch, unless the user has set TOKENIZERS_PARALLELISM.

    Afterwards the setting is left empty, which the engine reads as false. If it were unset, the
    engine would warn, and could hang, in a process that is forked later.
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
