"""Encode conversations as tokens with a mask of the tokens to learn.

The ids are those of the whole rendered text, as in transformers. Special tokens of the template get
their ids; a text that spells one out stays text. A token is learned if any of its characters belong
to the assistant. Each conversation ends with the end token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from penstock.data.chat.spans import (
    BREAK,
    LearnedTokens,
    RenderedConversation,
    SpecialTokenGuard,
    render_conversation,
)
from penstock.data.chat.template import DEFAULT_TEMPLATE, ChatTemplate
from penstock.data.chat.tokens import PiecewiseTokenizer, WholeTextTokenizer, can_tokenize_pieces
from penstock.data.format.manifest import dtype_for
from penstock.data.format.types import Tokens
from penstock.data.sources.messages import ASSISTANT, Conversation, InvalidConversation
from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.pack import Mask
from penstock.data.tokenize.special import parse_tokenizer, read_special, special_tokens
from penstock.data.tokenize.tokenizer import load_engine, vocabulary_size
from penstock.errors import PenstockError

Loss = Literal["assistant", "last", "all"]


@dataclass(frozen=True)
class EncodedConversation:
    """The tokens of a conversation."""

    ids: Tokens
    mask: Mask  # True for tokens to learn


class ChatEncoder:
    """Encoder for a dataset's tokenizer.json, with its own chat template or the default one."""

    def __init__(
        self,
        tokenizer_json: bytes,
        loss: Loss = "assistant",
        engines: Sequence[str] | None = None,
    ) -> None:
        """Load the tokenizer; `engines` as for FastTokenizer."""
        config = parse_tokenizer(tokenizer_json)
        self._special = read_special(tokenizer_json)
        self._dtype = np.dtype(dtype_for(vocabulary_size(load_engine(config))))
        self._guard = SpecialTokenGuard(special_tokens(config))
        self._template = ChatTemplate(self._special.template or DEFAULT_TEMPLATE, self._special)
        self._loss = loss
        self._tokenizer: PiecewiseTokenizer | WholeTextTokenizer
        if can_tokenize_pieces(config):
            self._tokenizer = PiecewiseTokenizer(
                FastTokenizer(tokenizer_json, engines), config, self._guard
            )
        else:
            self._tokenizer = WholeTextTokenizer(config)

    @property
    def end_id(self) -> int:
        """The id of the end token."""
        return self._special.end_id

    def encode(
        self, conversations: Sequence[Conversation]
    ) -> list[EncodedConversation | InvalidConversation]:
        """Return the tokens of each conversation, or the reason why it has none."""
        found = [self._rendered(conversation) for conversation in conversations]
        rendered = [one for one in found if isinstance(one, RenderedConversation)]
        learned = iter(self._tokenizer.tokens(rendered))
        return [
            self._closed(one, next(learned)) if isinstance(one, RenderedConversation) else one
            for one in found
        ]

    def _rendered(self, conversation: Conversation) -> RenderedConversation | InvalidConversation:
        try:
            if conversation.completion and not self._special.template:
                found = _completion(conversation, self._guard)
            elif conversation.prompt_turns and not self._special.template:
                return InvalidConversation(
                    "no chat template", "the tokenizer has none for a list of messages"
                )
            else:
                found = render_conversation(
                    conversation, self._template, self._guard, self._special.end
                )
        except InvalidConversation as refused:
            return refused
        if conversation.prompt_turns:
            found = _without_prompt(found, conversation)
        elif self._loss == "all":
            found = replace(found, turns=[(0, len(found.text))])
        elif self._loss == "last":
            found = replace(found, turns=found.turns[-1:])
        if not any(start < stop for start, stop in found.turns):
            return InvalidConversation("nothing to learn", "no turn of the assistant")
        text = found.text.rstrip()  # no white space after a last token that is END
        return replace(found, text=text) if text.endswith(self._special.end) else found

    def _closed(
        self, conversation: RenderedConversation, learned: LearnedTokens | InvalidConversation
    ) -> EncodedConversation | InvalidConversation:
        if isinstance(learned, InvalidConversation):
            return learned
        ids, mask = learned.ids.astype(self._dtype, copy=False), learned.mask
        if ids[-1] != self._special.end_id:
            # If nothing in the template closes the last turn, END does, and is learned.
            last = conversation.text[conversation.turns[-1][0] :]
            closings = [one.end() for one in self._guard.pattern.finditer(last)]
            closed = conversation.turns[-1][1] < len(conversation.text.rstrip()) or (
                bool(closings) and not last[closings[-1] :].strip()
            )
            ids = np.append(ids, self._dtype.type(self._special.end_id))
            mask = np.append(mask, self._loss == "all" or not closed)
        return EncodedConversation(ids, mask)


def _without_prompt(
    found: RenderedConversation, conversation: Conversation
) -> RenderedConversation:
    """Return the same text with only the answer learned: all from its first turn on."""
    before = sum(
        message["role"] == ASSISTANT
        for message in conversation.messages[: conversation.prompt_turns]
    )
    turns = found.turns[before:]
    if not turns:
        return replace(found, turns=[])
    return replace(found, turns=[(turns[0][0], turns[-1][1])])


def _completion(conversation: Conversation, guard: SpecialTokenGuard) -> RenderedConversation:
    """Join a prompt and its response, with a line feed if no white space separates them."""
    prompt, response = (guard.text(text) for text in conversation.texts())
    if not prompt.strip() or not response.strip():
        raise InvalidConversation("empty message", "nothing was left of the prompt or the response")
    if not prompt[-1].isspace() and not response[0].isspace():
        prompt += "\n"
    return RenderedConversation(prompt + response, [(len(prompt), len(prompt) + len(response))])


def chat_prompt(tokenizer_json: bytes, text: str) -> list[int]:
    """Return the tokens that ask a model for an answer to `text` as a user's turn.

    The tokenizer's chat template is used, or the default one. Its special tokens get their ids;
    those that the user spells out stay text.
    """
    config, special = parse_tokenizer(tokenizer_json), read_special(tokenizer_json)
    template = ChatTemplate(special.template or DEFAULT_TEMPLATE, special)
    guarded = SpecialTokenGuard(special_tokens(config)).text(text)
    try:
        rendered = template.render(
            [{"role": "user", "content": guarded}], add_generation_prompt=True
        )
    except InvalidConversation as refused:
        raise PenstockError(
            f"The chat template refuses a single question: {refused.detail or refused.reason}. "
            "Ask without --chat, or build the data with another tokens.chat_template."
        ) from None
    engine = load_engine(config)
    engine.encode_special_tokens = False
    pieces = engine.encode_batch(rendered.split(BREAK), add_special_tokens=False)
    return [token for piece in pieces for token in piece.ids]
