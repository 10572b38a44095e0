"""Tokens of rendered conversations from the fast engine, for byte-level tokenizers.

Such a tokenizer cuts a text at its special tokens and treats what lies between each on its own, so
the pieces can go to any engine for plain text. Each token stands for a known number of bytes, so
its place is a sum.
"""

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.data.chat.spans import BREAK, Guard, Learned, Rendered
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.special import Config, added_tokens


def fits(config: Config) -> bool:
    """Whether the pieces of a text, one by one, give the tokens of the whole."""
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


class Pieces:
    def __init__(self, engine: FastTokenizer, config: Config, guard: Guard) -> None:
        self._engine = engine
        self._special = {token["content"]: int(token["id"]) for token in added_tokens(config)}
        self._bytes = _bytes_of_tokens(config, engine.vocab)
        self._cut = re.compile(f"({guard.pattern.pattern}|{BREAK})")

    def tokens(self, conversations: list[Rendered]) -> list[Learned | InvalidConversation]:
        # Texts stand at even places, what they were cut at between them.
        cut = [self._cut.split(one.text) for one in conversations]
        flat = self._engine.encode_batch([text for parts in cut for text in parts[::2]])
        results: list[Learned | InvalidConversation] = []
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
        self, conversation: Rendered, ids: npt.NDArray[np.uint32]
    ) -> Learned | InvalidConversation:
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
        return Learned(ids, mask)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.replace(BREAK, "").encode())


def _bytes_of_tokens(config: Config, vocab: int) -> npt.NDArray[np.int64]:
    """A byte-level vocabulary writes each byte as one character."""
    sizes = np.zeros(vocab, np.int64)
    for token, number in config["model"]["vocab"].items():
        sizes[number] = len(token)
    for added in added_tokens(config):
        sizes[added["id"]] = len(added["content"].encode())
    return sizes
