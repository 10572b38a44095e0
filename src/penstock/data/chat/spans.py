"""Find the characters of a rendered conversation that the assistant wrote.

Templates with `{% generation %}` mark them. For other templates, the conversation is rendered up to
the turn, with the prompt for an answer; what the next rendering adds is the turn. Templates that
render a past turn differently from the newest one break this. For them, the turn's text is rendered
again with a mark at either end; the result counts if the marks changed nothing else. The token that
closes a turn belongs to it: a model must learn to stop.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.chat.template import LEARN_END, LEARN_START, ChatTemplate
from penstock.data.sources.messages import ASSISTANT, Conversation, InvalidConversation, Message

# Splits a special token that a text spells out. A lone surrogate, which no text can contain.
BREAK = "\ud800"
_FIRST, _LAST = "\ud803", "\ud804"
_MOST_MESSAGES = 1000  # each turn renders all before it: 1000 take a second or two
Span = tuple[int, int]


class SpecialTokenGuard:
    """Guard that keeps texts from becoming special tokens inside a template."""

    def __init__(self, special: Sequence[str]) -> None:
        ordered = sorted(special, key=lambda token: (-len(token), token))
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        # The beginning of a token at the end of a text could be completed by the text after it.
        self._heads = {token[:end] for token in ordered for end in range(1, len(token))}
        self._longest = max(map(len, ordered), default=0)

    def text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidConversation(
                "not Unicode", f"{error.reason} at character {error.start}"
            ) from None
        broken = self.pattern.sub(lambda found: found[0][0] + BREAK + found[0][1:], text)
        for size in range(min(self._longest, len(broken)), 0, -1):
            if broken[-size:] in self._heads:
                at = len(broken) - size + 1
                return broken[:at] + BREAK + broken[at:]
        return broken

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {self.value(key): self.value(one) for key, one in value.items()}
        return value

    def message(self, message: Message) -> Message:
        return {
            key: value if key == "role" else self.value(value) for key, value in message.items()
        }


@dataclass(frozen=True)
class RenderedConversation:
    """The text of a conversation."""

    text: str  # with BREAK inside special tokens that texts spell out
    turns: list[Span]  # of the assistant, in order


@dataclass(frozen=True)
class LearnedTokens:
    """The tokens of a conversation, and which of them have characters of the assistant's turns."""

    ids: npt.NDArray[np.uint32]
    mask: npt.NDArray[np.bool_]


def render_conversation(
    conversation: Conversation, template: ChatTemplate, guard: SpecialTokenGuard, end: str
) -> RenderedConversation:
    """Render a conversation; InvalidConversation if the template refuses it or hides a turn."""
    messages = [guard.message(message) for message in conversation.messages]
    tools = guard.value(conversation.tools)
    marked = template.render_marked(messages, tools)
    if LEARN_START in marked:
        return _by_marks(marked)
    if len(messages) > _MOST_MESSAGES:
        raise InvalidConversation("too many messages", f"{len(messages)}, over {_MOST_MESSAGES}")
    finder = _TurnFinder(marked, messages, tools, template, guard, end)
    turns = [finder.find(at) for at, one in enumerate(messages) if one["role"] == ASSISTANT]
    if any(before[1] > after[0] for before, after in pairwise(turns)):
        raise InvalidConversation("turns cannot be told apart", "the template mixes them")
    return RenderedConversation(marked, turns)


def _by_marks(marked: str) -> RenderedConversation:
    text, at = "", 0
    spans: list[Span] = []
    for piece in re.split(f"([{LEARN_START}{LEARN_END}])", marked):
        if piece == LEARN_START:
            at = len(text)
        elif piece == LEARN_END:
            spans.append((at, len(text)))
        else:
            text += piece
    return RenderedConversation(text, spans)


class _TurnFinder:
    def __init__(
        self,
        full: str,
        messages: list[Message],
        tools: list[Any],
        template: ChatTemplate,
        guard: SpecialTokenGuard,
        end: str,
    ) -> None:
        self._full = full
        self._messages = messages
        self._tools = tools
        self._template = template
        self._special = guard.pattern
        self._end = end

    def find(self, at: int) -> Span:
        before, prompt = self._upto(at), self._upto(at, prompt=True)
        whole = self._upto(at + 1)
        plain = bool(prompt and whole and prompt != before)
        if plain and self._full.startswith(whole) and whole.startswith(prompt):
            return len(prompt), self._closed(len(prompt), len(whole))
        header = prompt.removeprefix(before) if prompt != before else ""
        span = self._between_marks(at, header)
        if span is not None:
            return span if header else (self._with_blanks(span[0], before), span[1])
        if prompt == before and whole and self._full.startswith(whole) and whole.startswith(before):
            return len(before), self._closed(len(before), len(whole))
        raise InvalidConversation(
            "a turn cannot be found", f"message {at + 1} in what the template made of it"
        )

    def _with_blanks(self, start: int, before: str) -> int:
        """Return the start of a turn with the white space that the template puts before it.

        If no words prompt for an answer, the model must write that white space: back to the turn
        before, or to a special token.
        """
        text = self._full[:start].rstrip()
        if len(text) <= len(before) and self._full.startswith(before):
            return min(start, len(before))
        ends = [one.end() for one in self._special.finditer(text, max(0, len(text) - 100))]
        return len(text) if ends[-1:] == [len(text)] else start

    def _upto(self, count: int, prompt: bool = False) -> str:
        """Render only the first messages; return an empty string if the template refuses them."""
        if count == len(self._messages) and not prompt:
            return self._full
        try:
            return self._template.render(self._messages[:count], self._tools, prompt)
        except InvalidConversation:
            return ""

    def _closed(self, start: int, stop: int) -> int:
        """Return the end of a turn: after its last special token, without white space after it."""
        closings = [one.end() for one in self._special.finditer(self._full, start, stop)]
        if closings and not self._full[closings[-1] : stop].strip():
            return closings[-1]
        return stop + (len(self._end) if self._full.startswith(self._end, stop) else 0)

    def _between_marks(self, at: int, header: str) -> Span | None:
        content = self._messages[at].get("content", "")
        core = content.strip()
        if not core:
            return None
        lead = content[: content.index(core)]
        trail = content[len(lead) + len(core) :]
        # Marks around the words, since templates strip white space; or around the white space too,
        # if only that is left after a template has dropped the assistant's thoughts.
        tries = (f"{lead}{_FIRST}{core}{_LAST}{trail}", f"{_FIRST}{content}{_LAST}")
        found = (self._marked(at, header, marked) for marked in tries)
        return next((span for span in found if span is not None), None)

    def _marked(self, at: int, header: str, content: str) -> Span | None:
        message = self._messages[at]
        changed = list(self._messages)
        changed[at] = message | {"content": content}
        try:
            marked = self._template.render(changed, self._tools)
        except InvalidConversation:
            return None
        if re.sub(f"[{_FIRST}{_LAST}]", "", marked) != self._full or marked.count(_LAST) != 1:
            return None
        stop = marked.replace(_FIRST, "").index(_LAST)
        start = marked.replace(_LAST, "").find(_FIRST)
        if header:  # a template may drop the assistant's thoughts, and the mark with them
            found = self._full.rfind(header, 0, stop)
            start = found + len(header) if found >= 0 else start
        if start < 0:
            return None
        behind = self._special.search(self._full, stop)
        blank = behind and not self._full[stop : behind.start()].strip()
        if behind and (blank or message.get("tool_calls")):
            stop = behind.end()
        return start, stop
