"""Conversations of a source, checked and in one form: roles and texts.

A row is a list of messages (`role` and `content`, or ShareGPT's `from` and `value`), a prompt and
its response, or a prompt with a chosen and a rejected answer (a pair). A row that is not a valid
conversation is rejected and never ends a build. The document of a conversation carries its messages
in a special column; its text is the plain text of all turns, for the filters, deduplication and
labels.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.data.sources.options import ReadOptions

CONVERSATION_COLUMN = "\0conversation"  # a name that no user would give a column
ASSISTANT = "assistant"
_ROLES = {"system", "developer", "user", ASSISTANT, "tool", "function", "ipython"}
_OTHER_NAMES = {"human": "user", "gpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT}
_INSTRUCTION, _INPUT = "instruction", "input"  # Alpaca splits the prompt into two fields
_TOOLS = "tools"
EXTRA_FIELDS = (_TOOLS, _INPUT)  # fields of a row that a conversation may need

Message: TypeAlias = dict[str, Any]


class InvalidConversation(Exception):
    """Reason and detail for rejecting a row as a conversation, or for a chat template."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Conversation:
    """The messages of a row."""

    messages: tuple[Message, ...]  # `content`, if present, is a string
    tools: tuple[Any, ...] = ()  # JSON schemas, for the template
    completion: bool = False  # a prompt and its response: needs no template
    # Pairs only: the worse answer, in place of the messages from `prompt_turns` on.
    rejected: tuple[Message, ...] = ()
    prompt_turns: int = 0  # messages of the prompt; they are not learned

    def texts(self) -> list[str]:
        every = (*self.messages, *self.rejected)
        return [message["content"] for message in every if "content" in message]

    def with_texts(self, texts: Sequence[str]) -> "Conversation":
        """Return a copy with other texts, in the order of `texts()`."""
        left = iter(texts)
        messages, rejected = (
            tuple(
                message | ({"content": next(left)} if "content" in message else {})
                for message in some
            )
            for some in (self.messages, self.rejected)
        )
        return replace(self, messages=messages, rejected=rejected)

    def both(self) -> "tuple[Conversation, Conversation]":
        """Return the two conversations of a pair: with the chosen answer, with the rejected."""
        prompt = self.messages[: self.prompt_turns]
        return replace(self, rejected=()), replace(
            self, messages=(*prompt, *self.rejected), rejected=()
        )

    def text(self) -> str:
        """Return the texts and tool calls: conversations with other calls are not copies."""
        texts = [
            text
            for message in (*self.messages, *self.rejected)
            for text in (message.get("content", ""), _calls(message))
            if text.strip()
        ]
        return "\n\n".join(texts)

    def to_column(self) -> dict[str, object]:
        return {
            "messages": list(self.messages),
            "tools": list(self.tools),
            "completion": self.completion,
            **(
                {"rejected": list(self.rejected), "prompt_turns": self.prompt_turns}
                if self.rejected
                else {}
            ),
        }

    @staticmethod
    def from_column(kept: Mapping[str, Any]) -> "Conversation":
        return Conversation(
            tuple(kept["messages"]),
            tuple(kept["tools"]),
            kept["completion"],
            tuple(kept.get("rejected", ())),
            kept.get("prompt_turns", 0),
        )


def _calls(message: Message) -> str:
    calls = message.get("tool_calls")
    return json.dumps(calls, ensure_ascii=False, default=str) if calls else ""


def take_conversation(record: dict[str, Any], options: ReadOptions) -> str:
    """Replace the fields of a conversation by its special column, and return its text."""
    if options.messages:
        conversation = from_messages(record, options.messages)
    elif options.chosen:
        conversation = from_pair(record, options.prompt, options.chosen, options.rejected)
    else:
        conversation = from_prompt(record, options.prompt, options.response)
    for field in set(options.chat):
        del record[field]
    record[CONVERSATION_COLUMN] = conversation.to_column()
    return conversation.text()


def carried_columns(record: dict[str, Any], options: ReadOptions) -> dict[str, Any]:
    """Return the columns that a document carries."""
    if options.columns is None:
        return record
    columns = {column: record.get(column) for column in options.columns}
    return columns | ({CONVERSATION_COLUMN: record[CONVERSATION_COLUMN]} if options.chat else {})


def from_messages(record: Mapping[str, Any], field: str) -> Conversation:
    messages = _messages(_parsed(record.get(field)), field)
    return Conversation(tuple(messages), _tools(record))


def _tools(record: Mapping[str, Any]) -> tuple[Any, ...]:
    tools = _parsed(record.get(_TOOLS)) or ()
    if not isinstance(tools, list | tuple):
        raise InvalidConversation("tools are not a list", type(tools).__name__)
    return tuple(tools)


def from_prompt(record: Mapping[str, Any], prompt: str, response: str) -> Conversation:
    """Read a prompt and its response; either may be a list of messages.

    A prompt in `instruction` is followed by Alpaca's `input`.
    """
    question, answer = (_parsed_list(record.get(field)) for field in (prompt, response))
    if isinstance(question, list) or isinstance(answer, list):
        turns = _turns(question, "user") + _turns(answer, ASSISTANT)
        return Conversation(tuple(_messages(turns, f"{prompt} and {response}")))
    for field, text in ((prompt, question), (response, answer)):
        if not isinstance(text, str):
            found = "null or missing" if text is None else type(text).__name__
            raise InvalidConversation("no prompt and response", f"field {field!r} is {found}")
        if not text.strip():
            raise InvalidConversation("empty message", f"field {field!r}")
    more = record.get(_INPUT) if prompt == _INSTRUCTION else None
    if isinstance(more, str) and more.strip():
        question = f"{question}\n\n{more}"
    turns = [{"role": "user", "content": question}, {"role": ASSISTANT, "content": answer}]
    return Conversation(tuple(turns), completion=True)


def from_pair(record: Mapping[str, Any], prompt: str, chosen: str, rejected: str) -> Conversation:
    """Read a prompt with its chosen and its rejected answer; each is text or a list of messages."""
    fields = (prompt, chosen, rejected)
    found = [_parsed_list(record.get(field)) for field in fields]
    for field, given in zip(fields, found, strict=True):
        if not isinstance(given, str | list):
            kind = "null or missing" if given is None else type(given).__name__
            raise InvalidConversation(f"no {field}", f"field {field!r} is {kind}")
        if isinstance(given, str) and not given.strip():
            raise InvalidConversation("empty message", f"field {field!r}")
    turns = [
        _messages(_turns(given, role), field)
        for given, role, field in zip(found, ("user", ASSISTANT, ASSISTANT), fields, strict=True)
    ]
    for field, answer in zip(fields[1:], turns[1:], strict=True):
        if answer[0]["role"] != ASSISTANT:
            raise InvalidConversation(
                "no answer",
                f"field {field!r} begins with the role {answer[0]['role']}; it holds the answer "
                f"alone, and {prompt!r} all turns before it",
            )
    if turns[1] == turns[2]:
        raise InvalidConversation(
            "chosen and rejected are equal", "there is nothing to prefer in such a pair"
        )
    return Conversation(
        (*turns[0], *turns[1]),
        _tools(record),
        completion=all(isinstance(one, str) for one in found),
        rejected=tuple(turns[2]),
        prompt_turns=len(turns[0]),
    )


def _turns(given: object, role: str) -> list[Any]:
    return given if isinstance(given, list) else [{"role": role, "content": given}]


def _parsed_list(value: object) -> object:
    """Parse a JSON list of objects; leave other text alone, since a prompt may be JSON."""
    parsed = _parsed(value)
    objects = isinstance(parsed, list) and parsed and all(isinstance(one, dict) for one in parsed)
    return parsed if objects else value


def _parsed(value: object) -> object:
    """Parse a list that is stored as JSON in a string, as tables often do."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            parsed = json.loads(value)
            json.dumps(parsed, ensure_ascii=False).encode()  # raises on escaped lone surrogates
            return parsed
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            return value
    return value


def _messages(found: object, field: str) -> list[Message]:
    if not isinstance(found, list):
        kind = "null or missing" if found is None else type(found).__name__
        raise InvalidConversation("no messages", f"field {field!r} is {kind}, not a list")
    if not found:
        raise InvalidConversation("no messages", f"field {field!r} is an empty list")
    return [_message(at, message) for at, message in enumerate(found, 1)]


def _message(at: int, given: object) -> Message:
    if not isinstance(given, dict):
        raise InvalidConversation(
            "message is not an object", f"message {at} is {type(given).__name__}"
        )
    message = {str(key): value for key, value in given.items() if value is not None}
    if "role" not in message and "from" in message:
        message["role"] = message.pop("from")
        message["content"] = message.pop("value", None)
    given_role = message.get("role")
    role = _OTHER_NAMES.get(given_role, given_role) if isinstance(given_role, str) else ""
    if role not in _ROLES:
        raise InvalidConversation("unknown role", f"message {at} has role {ascii(given_role)[:60]}")
    message["role"] = role
    content = _content(at, message.pop("content", None))
    if content is not None:
        message["content"] = content
    if not (content and content.strip()) and not message.get("tool_calls"):
        raise InvalidConversation("empty message", f"message {at} ({role})")
    return message


def _content(at: int, content: object) -> str | None:
    if isinstance(content, list):  # parts: texts are joined, images and audio are rejected
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise InvalidConversation(
                "content is not text", f"message {at} has parts that are not text"
            )
        content = "".join(str(part) for part in parts)
    if content is not None and not isinstance(content, str):
        raise InvalidConversation(
            "content is not text", f"message {at} is {type(content).__name__}"
        )
    return content
