"""Rows of all shapes become conversations, or a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.messages import (
    CONVERSATION_COLUMN,
    Conversation,
    InvalidConversation,
    from_messages,
    from_prompt,
)
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_source
from penstock.errors import PenstockError

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def of(messages: Any, **more: Any) -> Conversation:
    return from_messages({"messages": messages, **more}, "messages")


def test_messages_of_all_kinds_become_one_form() -> None:
    plain = Conversation((USER, ANSWER))
    assert of([USER, ANSWER]) == plain
    assert of(json.dumps([USER, ANSWER])) == plain
    assert of([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]) == plain
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert of([{"role": "user", "content": parts}, ANSWER | {"tool_calls": None}]) == plain


def test_tools_are_kept_with_a_conversation() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    conversation = of([USER, called], tools='[{"name": "f"}]')
    assert conversation.tools == ({"name": "f"},)
    assert conversation.messages[1] == {"role": "assistant", "tool_calls": [{"name": "f"}]}
    assert conversation.text() == 'Hi\n\n[{"name": "f"}]'


@pytest.mark.parametrize(
    ("messages", "reason", "detail"),
    [
        (None, "no messages", "null or missing"),
        ([], "no messages", "empty list"),
        ("Hi", "no messages", "str"),
        ({"role": "user"}, "no messages", "dict"),
        (["Hi"], "message is not an object", "message 1 is str"),
        ([USER, {"role": "Zeus", "content": "x"}], "unknown role", "message 2 has role 'Zeus'"),
        ([{"content": "x"}], "unknown role", "None"),
        ([{"role": ["user"], "content": "x"}], "unknown role", "user"),
        ([USER, {"role": "assistant", "content": " \n"}], "empty message", "message 2 (assistant)"),
        ([{"role": "user"}], "empty message", "message 1"),
        ([{"role": "user", "content": 3}], "content is not text", "message 1 is int"),
        ([{"role": "user", "content": [{"type": "image"}]}], "content is not text", "not text"),
    ],
)
def test_a_row_that_is_no_conversation_is_rejected_with_a_reason(
    messages: Any, reason: str, detail: str
) -> None:
    with pytest.raises(InvalidConversation) as refused:
        of(messages)
    assert refused.value.reason == reason
    assert detail in refused.value.detail


def test_prompts_and_responses_are_read() -> None:
    asked = Conversation((USER, ANSWER), completion=True)
    assert from_prompt({"prompt": "Hi", "response": "Hello"}, "prompt", "response") == asked
    alpaca = {"instruction": "Add", "input": "1, 2", "output": "3"}
    assert from_prompt(alpaca, "instruction", "output").texts() == ["Add\n\n1, 2", "3"]
    assert from_prompt(alpaca | {"input": ""}, "instruction", "output").texts() == ["Add", "3"]
    assert from_prompt(alpaca, "input", "output").texts() == ["1, 2", "3"]
    chat = from_prompt({"p": [USER], "r": "Hello"}, "p", "r")
    assert chat == Conversation((USER, ANSWER))
    listed = from_prompt({"p": "[1, 2]", "r": "[]"}, "p", "r")  # a text that looks like a list
    assert listed.texts() == ["[1, 2]", "[]"]
    for row in ({"p": "x"}, {"p": 1, "r": "x"}, {"p": "x", "r": " "}, {"p": [{}], "r": "x"}):
        with pytest.raises(InvalidConversation):
            from_prompt(row, "p", "r")


def test_texts_can_be_replaced() -> None:
    called = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    conversation = of([USER, called, ANSWER])
    again = conversation.with_texts([text.upper() for text in conversation.texts()])
    assert [one.get("content") for one in again.messages] == ["HI", None, "HELLO"]
    assert again.text() == 'HI\n\n[{"name": "f"}]\n\nHELLO'
    assert conversation.texts() == ["Hi", "Hello"]
    column = json.loads(json.dumps(again.to_column()))
    assert Conversation.from_column(column) == again


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "tool_calls", "text"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=JSON, other=JSON)
def test_no_row_is_fatal(value: Any, other: Any) -> None:
    for make in (
        lambda: of(value, tools=other),
        lambda: from_prompt({"p": value, "r": other}, "p", "r"),
    ):
        try:
            conversation = make()
        except InvalidConversation:
            continue
        assert all(isinstance(text, str) for text in conversation.texts())


ROWS: list[Any] = [
    {"messages": [USER, ANSWER], "url": "a", "n": 1},
    {"messages": [], "url": "b", "n": 2},
    {"messages": None, "url": "c", "n": 3},
    {"messages": [USER, {"role": "assistant", "content": "Grüße"}], "url": "d", "n": 4},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"chat.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + '\n{"url": "e"}\n')
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    pieces = list(read_source([path], ReadOptions(messages="messages", columns=("url",))))
    documents = [one for one in pieces if isinstance(one, Document)]
    assert [one.id for one in documents] == [f"chat.{kind}:1", f"chat.{kind}:4"]
    assert [one.text for one in documents] == ["Hi\n\nHello", "Hi\n\nGrüße"]
    assert [set(one.columns) for one in documents] == [{"url", CONVERSATION_COLUMN}] * 2
    assert Conversation.from_column(documents[0].columns[CONVERSATION_COLUMN]) == Conversation(
        (USER, ANSWER)
    )
    rejected = [one for one in pieces if isinstance(one, Rejected)]
    assert {one.reason for one in rejected} == {"no messages"}
    assert [one.line for one in rejected] == ([2, 3, 5] if kind == "jsonl" else [2, 3])
    assert isinstance(pieces[-1], FileSummary)
    assert pieces[-1].documents == 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_prompts_of_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"chat.{kind}"
    rows = [{"instruction": "Add", "input": "1, 2", "output": "3"}]
    if kind == "jsonl":
        path.write_text(json.dumps(rows[0]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    options = ReadOptions(prompt="instruction", response="output", columns=())
    document = next(iter(read_source([path], options)))
    assert isinstance(document, Document)
    assert document.text == "Add\n\n1, 2\n\n3"
    assert set(document.columns) == {CONVERSATION_COLUMN}
    missing = next(iter(read_source([path], ReadOptions(prompt="question", response="output"))))
    assert isinstance(missing, Rejected)
    assert missing.reason == "no prompt and response"
    assert "'question'" in missing.detail


def test_contradictory_options_are_refused() -> None:
    for options in ({"prompt": "p"}, {"response": "r"}, {"messages": "m", "prompt": "p"}):
        with pytest.raises(PenstockError, match="`prompt` and `response` together"):
            ReadOptions(**options)
