"""Encode pairs of answers: a prompt with its chosen answer, then with its rejected one.

A pair becomes two sequences of one length, one after the other, so that it is a sample like any
other: its place in the dataset follows from its number. The rest of a sequence is filled with
END, which is not learned. An answer that does not fit is cut at its end, as TRL cuts it; a prompt
is never cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.data.chat.encode import ChatEncoder, EncodedConversation
from penstock.data.format.types import Tokens
from penstock.data.sources.messages import Conversation, InvalidConversation
from penstock.data.tokenize.pack import Mask


@dataclass(frozen=True)
class EncodedPair:
    """The tokens of a pair: the chosen sequence, then the rejected one."""

    ids: Tokens
    mask: Mask  # True for tokens of the answers
    cut: bool  # an answer was longer than the sequence


def encode_pairs(
    encoder: ChatEncoder, pairs: Sequence[Conversation], sequence: int
) -> list[EncodedPair | InvalidConversation]:
    """Return the tokens of each pair, in two sequences of `sequence` tokens, or why it has none."""
    both = [side for pair in pairs for side in pair.both()]
    encoded = encoder.encode(both)
    return [
        _laid_out(chosen, rejected, sequence, encoder.end_id)
        for chosen, rejected in zip(encoded[::2], encoded[1::2], strict=True)
    ]


def _laid_out(
    chosen: EncodedConversation | InvalidConversation,
    rejected: EncodedConversation | InvalidConversation,
    sequence: int,
    end_id: int,
) -> EncodedPair | InvalidConversation:
    if isinstance(chosen, InvalidConversation):
        return chosen
    if isinstance(rejected, InvalidConversation):
        return rejected
    ids = np.full(2 * sequence, end_id, chosen.ids.dtype)
    mask = np.zeros(2 * sequence, np.bool_)
    for side, at in ((chosen, 0), (rejected, sequence)):
        prompt = int(np.argmax(side.mask))  # tokens before the answer
        if prompt >= sequence:
            return InvalidConversation(
                "prompt too long", f"{prompt} tokens, and data.sequence = {sequence}"
            )
        kept = min(len(side.ids), sequence)
        ids[at : at + kept] = side.ids[:kept]
        mask[at : at + kept] = side.mask[:kept]
        mask[at] = False  # nothing comes before it
    if (ids[:sequence] == ids[sequence:]).all():
        return InvalidConversation(
            "chosen and rejected are equal", f"in their first {sequence} tokens"
        )
    return EncodedPair(ids, mask, max(len(chosen.ids), len(rejected.ids)) > sequence)
