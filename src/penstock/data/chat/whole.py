"""Tokens of rendered conversations from `tokenizers` itself, which says where each token stands.

Right for every tokenizer, and slow. A special token that a text spells out is parted by a character
without a meaning, whose own tokens are taken out again.
"""

import numpy as np
import numpy.typing as npt

from penstock.data.chat.spans import BREAK, Learned, Rendered
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.special import Config
from penstock.data.tokenize.tokenizer import load_engine, threads

_STANDS_IN = "\ufdd0"  # where BREAK is: a character that Unicode gives no meaning


class Whole:
    def __init__(self, config: Config) -> None:
        # Post-processing only adds tokens, and would cut blanks from the places of others.
        self._engine = load_engine(config | {"post_processor": None})
        self._engine.encode_special_tokens = False

    def tokens(self, conversations: list[Rendered]) -> list[Learned | InvalidConversation]:
        texts = [one.text.replace(BREAK, _STANDS_IN) for one in conversations]
        with threads():
            batch = self._engine.encode_batch(texts, add_special_tokens=False)
        return [
            _learned(one, np.array(encoding.ids, np.uint32), encoding.offsets)
            for one, encoding in zip(conversations, batch, strict=True)
        ]


def _learned(
    conversation: Rendered, ids: npt.NDArray[np.uint32], offsets: list[tuple[int, int]]
) -> Learned | InvalidConversation:
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
    return Learned(ids[keep], mask[keep])
