"""Two ways to tokenize rendered conversations: in pieces, which is fast, or as a whole.

A byte-level tokenizer splits a text at its special tokens and treats each piece in between on its
own, so the pieces can go to any engine for plain text. Each token stands for a known number of
bytes, so its position is a sum. `PiecewiseTokenizer` does that.

`WholeTextTokenizer` asks `tokenizers` for the position of each token. It works with every tokenizer
and is slow. A special token that a text spells out is split by a character without meaning, whose
own tokens are then removed.
"""

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.data.chat.spans import BREAK, LearnedTokens, RenderedConversation, SpecialTokenGuard
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.special import TokenizerJson, added_tokens
from penstock.data.tokenize.tokenizer import load_engine, tokenizer_threads


def can_tokenize_pieces(config: TokenizerJson) -> bool:
    """Return whether tokenizing the pieces of a text gives the tokens of the whole."""
    added = added_tokens(config)
    special = [token["content"] for token in added if token.get("special")]
    plain = [token["content"] for token in added if not token.get("special")]
    stage = config.get("pre_tokenizer") or {}
    stages = stage.get("pretokenizers", [stage])
    return (
        config["model"].get("type", "BPE") == "BPE"
        and not config.get("normalizer")
        and {"ByteLevel"} <= {one.get("type") for one in stages} <= {"ByteLevel", "Split", "Digits"}
        and not any(one.get("add_prefix_space") for one in stages)
        and not any(one.get(key) for one in added for key in ("lstrip", "rstrip", "single_word"))
        and not any(one in other for one in special for other in plain)
    )


class PiecewiseTokenizer:
    """Fast tokenizer of rendered conversations, for byte-level BPE."""

    def __init__(
        self, engine: FastTokenizer, config: TokenizerJson, guard: SpecialTokenGuard
    ) -> None:
        self._engine = engine
        self._special = {token["content"]: int(token["id"]) for token in added_tokens(config)}
        self._bytes = _bytes_of_tokens(config, engine.vocab)
        self._cut = re.compile(f"({guard.pattern.pattern}|{BREAK})")

    def tokens(
        self, conversations: list[RenderedConversation]
    ) -> list[LearnedTokens | InvalidConversation]:
        # Texts have even indices; the separators between them have odd ones.
        cut = [self._cut.split(one.text) for one in conversations]
        flat = self._engine.encode_batch([text for parts in cut for text in parts[::2]])
        results: list[LearnedTokens | InvalidConversation] = []
        at = 0
        for conversation, parts in zip(conversations, cut, strict=True):
            ids: list[npt.NDArray[np.uint32]] = []
            for place, part in enumerate(parts):
                if place % 2 == 0:
                    ids.append(flat.document(at))
                    at += 1
                elif part != BREAK:
                    ids.append(np.array([self._special[part]], np.uint32))
            results.append(self._learned(conversation, np.concatenate(ids, dtype=np.uint32)))
        return results

    def _learned(
        self, conversation: RenderedConversation, ids: npt.NDArray[np.uint32]
    ) -> LearnedTokens | InvalidConversation:
        after = np.cumsum(self._bytes[ids])
        first = after - self._bytes[ids]
        text = conversation.text
        borders = [0, *(border for turn in conversation.turns for border in turn), len(text)]
        sizes = [_size(text[one:other]) for one, other in pairwise(borders)]
        places = np.cumsum(sizes)
        if not len(ids) or after[-1] != places[-1]:
            return InvalidConversation(
                "not all of the text has tokens", "the tokenizer leaves bytes out"
            )
        mask = np.zeros(len(ids), np.bool_)
        for start, stop in zip(places[:-1:2], places[1::2], strict=True):
            mask |= (first < stop) & (after > start)
        return LearnedTokens(ids, mask)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.replace(BREAK, "").encode())


def _bytes_of_tokens(config: TokenizerJson, vocab: int) -> npt.NDArray[np.int64]:
    """Return the bytes of each token; a byte-level vocabulary writes each byte as a character."""
    sizes = np.zeros(vocab, np.int64)
    for token, number in config["model"]["vocab"].items():
        sizes[number] = len(token)
    for added in added_tokens(config):
        sizes[added["id"]] = len(added["content"].encode())
    return sizes


_STANDS_IN = "\ufdd0"  # where BREAK is: a character that Unicode gives no meaning


class WholeTextTokenizer:
    """Slow tokenizer of rendered conversations, for all other tokenizers."""

    def __init__(self, config: TokenizerJson) -> None:
        # Post-processing only adds tokens, and would change the offsets of others.
        self._engine = load_engine(config | {"post_processor": None})
        self._engine.encode_special_tokens = False

    def tokens(
        self, conversations: list[RenderedConversation]
    ) -> list[LearnedTokens | InvalidConversation]:
        texts = [one.text.replace(BREAK, _STANDS_IN) for one in conversations]
        with tokenizer_threads():
            batch = self._engine.encode_batch(texts, add_special_tokens=False)
        return [
            _learned(one, np.array(encoding.ids, np.uint32), encoding.offsets)
            for one, encoding in zip(conversations, batch, strict=True)
        ]


def _learned(
    conversation: RenderedConversation, ids: npt.NDArray[np.uint32], offsets: list[tuple[int, int]]
) -> LearnedTokens | InvalidConversation:
    first, after = np.array(offsets, np.int64).reshape(-1, 2).T
    keep = np.ones(len(ids), np.bool_)
    for at, character in enumerate(conversation.text):
        if character != BREAK:
            continue
        over = (first <= at) & (after > at)
        if (first[over] != at).any() or (after[over] != at + 1).any():
            return InvalidConversation(
                "spells a special token", "which this tokenizer cannot keep as text"
            )
        keep &= ~over
    mask = np.zeros(len(ids), np.bool_)
    for start, stop in conversation.turns:
        mask |= (first < stop) & (after > start)
    return LearnedTokens(ids[keep], mask[keep])
