"""Byte-level BPE that suits code: training, encoding, decoding.

Any text comes back byte for byte. A line break and the indentation after it are one piece, so that
indentation is one token however deep; identifiers keep their underscores; digits go in groups of at
most three. Merges never cross pieces. The result depends on the texts alone: not on threads, nor on
how the texts were batched.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from penstock.errors import PenstockError

END = "<|end|>"  # closes each document
LEAST_VOCAB = 257  # every byte, and END

_PIECES = "|".join(
    [
        r"[\r\n]+[ \t]*",  # line breaks and the indentation that follows
        r" ?[\p{L}\p{M}_]+",  # words and identifiers
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{M}\p{N}_]+",  # operators and punctuation
        r"[^\S\r\n]+(?!\S)|\s+",  # other runs of blanks leave their last to the word
    ]
)


class Tokenizer:
    def __init__(self, engine: Engine) -> None:
        end = engine.token_to_id(END)
        if end is None:
            raise PenstockError(
                f"The tokenizer has no {END} token, which must close each document."
            )
        # Text is only text: a document that spells out "<|end|>" does not end there.
        engine.encode_special_tokens = True
        self._engine = engine
        self.end: int = end
        self.vocab: int = engine.get_vocab_size(with_added_tokens=True)

    @staticmethod
    def from_json(content: bytes) -> "Tokenizer":
        return Tokenizer(Engine.from_str(content.decode()))

    def to_json(self) -> bytes:
        return self._engine.to_str().encode()

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """The ids of each text, without a closing END."""
        with _threads():
            batch = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in batch]

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of `ids`; END reads as itself, bytes that are not UTF-8 as U+FFFD."""
        return self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def train(texts: Sequence[str], vocab: int) -> Tokenizer:
    """Learns merges until there are `vocab` tokens, or fewer when the texts give out."""
    if vocab < LEAST_VOCAB:
        raise PenstockError(
            f"A vocabulary of {vocab} is too small: every byte and {END} need {LEAST_VOCAB}."
        )
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with _threads():
        engine.train_from_iterator(texts, trainer)
    return Tokenizer(engine)


@contextmanager
def _threads() -> Iterator[None]:
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
