"""Tokens of conversations: right ids, the assistant's are learned, text is never special."""

import json
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from chat_models import MODELS, base, model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers

from penstock.data.chat.encode import ChatEncoder, EncodedConversation, Loss
from penstock.data.chat.spans import SpecialTokenGuard, render_conversation
from penstock.data.chat.template import DEFAULT_TEMPLATE, ChatTemplate
from penstock.data.chat.tokens import PiecewiseTokenizer, WholeTextTokenizer, can_tokenize_pieces
from penstock.data.sources.messages import Conversation, InvalidConversation
from penstock.data.tokenize import fast as fast_tokens
from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.hard_sample import hard_texts
from penstock.data.tokenize.special import (
    SpecialTokens,
    parse_tokenizer,
    read_special,
    special_tokens,
    with_special,
)
from penstock.data.tokenize.tokenizer import Tokenizer


@pytest.fixture(scope="module", autouse=True)
def short_sample() -> Iterator[None]:
    """Engines are accepted on a part of the sample: here they are not on trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_tokens, "hard_texts", lambda special: hard_texts(special)[::50])
        yield


@cache
def encoder(name: str, loss: Loss = "assistant") -> ChatEncoder:
    return ChatEncoder(model(name), loss)


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_json(model(name))


def turns(*texts: str) -> list[dict[str, Any]]:
    """The user's and the assistant's, in turn."""
    return [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(texts)
    ]


def encoded(
    name: str, messages: list[dict[str, Any]], loss: Loss = "assistant"
) -> EncodedConversation:
    result = encoder(name, loss).encode([Conversation(tuple(messages))])[0]
    assert isinstance(result, EncodedConversation), result
    return result


def runs(name: str, messages: list[dict[str, Any]], loss: Loss = "assistant") -> list[str]:
    """The stretches of text that are learned."""
    found = encoded(name, messages, loss)
    pairs = groupby(zip(found.mask, found.ids, strict=True), key=lambda pair: pair[0])
    decode = tokenizer(name).decode
    return [decode([token for _, token in group]) for learned, group in pairs if learned]


TALK = turns("Hi", "Hello world!", "How?", " I am fine. ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3", ["Hello world!<|eot_id|>", "I am fine.<|eot_id|>"]),
        ("qwen25", ["Hello world!<|im_end|>", " I am fine. <|im_end|>"]),
        ("mistral", [" Hello world!</s>", " I am fine.</s>"]),
        ("mistral-system", [" Hello world!</s>", " I am fine.</s>"]),
        ("zephyr", ["Hello world!</s>", " I am fine. </s>"]),
        ("generation", ["Hello world!<|im_end|>", " I am fine. <|im_end|>"]),
        ("no-prompt", ["Hello world!<|im_end|>", " I am fine. <|im_end|>"]),
        ("default", ["Hello world!<|end|>", " I am fine. <|end|>"]),
    ],
)
def test_the_assistants_turns_and_what_closes_them(name: str, expected: list[str]) -> None:
    assert runs(name, TALK) == expected
    assert runs(name, TALK, "last") == expected[-1:]
    everything = encoded(name, TALK, "all")
    assert everything.mask.all()
    assert np.array_equal(everything.ids, encoded(name, TALK).ids)


def test_templates_that_render_past_turns_differently() -> None:
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    assert runs("mistral-system", system) == [" Hello world!</s>", " I am fine.</s>"]
    thoughts = turns("Hi", "<think>\nhm\n</think>\n\nHello", "How?", "<think>so</think>fine")
    assert runs("thinks", thoughts) == ["Hello<|im_end|>", "<think>so</think>fine<|im_end|>"]
    # The blanks after Llama's header are the header's.
    assert runs("llama3-thinks", thoughts) == ["Hello<|eot_id|>", "<think>so</think>fine<|eot_id|>"]


def test_tool_calls_are_learned_and_their_results_are_not() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 2."},
    ]
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert runs("qwen25", messages) == [f"Let me see.\n{called}", called, "It is 2.<|im_end|>"]


def test_the_end_closes_a_conversation_once() -> None:
    for name in MODELS:
        found = encoded(name, TALK)
        end = tokenizer(name).end
        assert found.ids[-1] == end
        assert found.ids[-2] != end
    # The template leaves the last turn open, so END closes it and is learned.
    bare = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    content = with_special(base(), SpecialTokens("<|end|>", 0, {}, bare))
    result = ChatEncoder(content).encode([Conversation(tuple(turns("a", "b")))])[0]
    assert isinstance(result, EncodedConversation)
    assert result.mask[-1]
    assert result.ids[-1] == 0


SPELLED = sorted({token for _, special, end, _ in MODELS.values() for token in [*special, end]})
TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.sampled_from([*SPELLED, "<", "<|", "<|im_", "[/INST", "|>", "s>"]),
        st.sampled_from(["hello", " you", "\n", "  ", "é", "😀", "</think>", "\ufdd0"]),
    ),
    max_size=6,
).map(lambda parts: "x" + "".join(parts))


@pytest.mark.parametrize("name", list(MODELS))
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXT, min_size=2, max_size=2) | st.lists(TEXT, min_size=4, max_size=4))
@example(["x", "x</think>\n", "x", "x"])  # nothing is left of the first answer
def test_no_text_becomes_special(name: str, texts: list[str]) -> None:
    special = [tokenizer(name).end, *map(_id(name), special_tokens(parse_tokenizer(model(name))))]

    def structure(words: list[str]) -> list[int]:
        return [one for one in encoded(name, turns(*words)).ids.tolist() if one in special]

    found = encoded(name, turns(*texts))
    assert structure(texts) == structure(["x"] * len(texts))
    # and all of it is there
    source, _, end, names = MODELS[name]
    plain = ChatTemplate(source or DEFAULT_TEMPLATE, SpecialTokens(end, 0, names)).render(
        turns(*texts)
    )
    text = tokenizer(name).decode(found.ids)
    closed = plain.rstrip() if plain.rstrip().endswith(end) else plain + end
    assert text == closed


def _id(name: str) -> Any:
    return Engine.from_str(model(name).decode()).token_to_id


@pytest.mark.parametrize("name", ["llama3", "qwen25", "mistral", "default"])
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=2
    )
)
def test_ids_are_those_of_the_whole_text(name: str, texts: list[str]) -> None:
    config = parse_tokenizer(model(name))
    source, _, end, names = MODELS[name]
    template = ChatTemplate(source or DEFAULT_TEMPLATE, SpecialTokens(end, 0, names))
    guard = SpecialTokenGuard(special_tokens(config))
    conversation = Conversation(tuple(turns(*texts)))
    one = render_conversation(conversation, template, guard, end)
    assert can_tokenize_pieces(config)
    fast, slow = _pieces(name).tokens([one])[0], _whole(name).tokens([one])[0]
    assert not isinstance(fast, InvalidConversation)
    assert not isinstance(slow, InvalidConversation)
    assert fast.ids.tolist() == slow.ids.tolist()
    assert fast.mask.tolist() == slow.mask.tolist()
    engine = Engine.from_str(model(name).decode())
    if "\ud800" not in one.text:
        assert fast.ids.tolist() == engine.encode(one.text, add_special_tokens=False).ids


@cache
def _pieces(name: str) -> PiecewiseTokenizer:
    config = parse_tokenizer(model(name))
    return PiecewiseTokenizer(
        FastTokenizer(model(name)), config, SpecialTokenGuard(special_tokens(config))
    )


@cache
def _whole(name: str) -> WholeTextTokenizer:
    return WholeTextTokenizer(parse_tokenizer(model(name)))


def sentencepiece_like() -> bytes:
    """As Llama 2's: blanks are ▁, one is put in front, unknown characters are bytes."""
    alphabet = [chr(point) for point in range(33, 127)] + ["▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *alphabet]
    vocab = {token: at for at, token in enumerate(tokens)}
    vocab["hi"] = len(vocab)
    engine = Engine(
        models.BPE(vocab, [("h", "i")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    template, _, end, names = MODELS["mistral"]
    return with_special(engine.to_str().encode(), SpecialTokens(end, 2, names, template))


def test_tokenizers_that_are_not_byte_level() -> None:
    content = sentencepiece_like()
    assert not can_tokenize_pieces(parse_tokenizer(content))
    messages = turns("hi </s> é", "hi <s>", "hi", "hi")
    result = ChatEncoder(content).encode([Conversation(tuple(messages))])[0]
    assert isinstance(result, EncodedConversation)
    assert [one for one in result.ids.tolist() if one in (1, 2)] == [1, 2, 2]
    learned = Tokenizer(content).decode(result.ids[result.mask])
    assert learned.replace(" ", "") == "hi<s></s>hi</s>"
    assert "é" in Tokenizer(content).decode(result.ids)


def test_byte_level_tokenizers_can_tokenize_pieces() -> None:
    config = json.loads(base())
    assert can_tokenize_pieces(config)
    assert not can_tokenize_pieces(config | {"normalizer": {"type": "NFC"}})
    assert not can_tokenize_pieces(config | {"pre_tokenizer": {"type": "Metaspace"}})
    level = {"type": "ByteLevel", "add_prefix_space": True}
    assert not can_tokenize_pieces(config | {"pre_tokenizer": level})
    assert can_tokenize_pieces(config | {"pre_tokenizer": level | {"add_prefix_space": False}})
    eats = [config["added_tokens"][0] | {"lstrip": True}]
    assert not can_tokenize_pieces(config | {"added_tokens": eats})


def test_a_prompt_and_its_response_need_no_template() -> None:
    def pair(prompt: str, response: str, name: str = "default") -> list[str]:
        messages = tuple(turns(prompt, response))
        result = encoder(name).encode([Conversation(messages, completion=True)])[0]
        assert isinstance(result, EncodedConversation)
        decode = tokenizer(name).decode
        return [decode(result.ids[~result.mask]), decode(result.ids[result.mask])]

    assert pair("Say hello", "Hello") == ["Say hello\n", "Hello<|end|>"]
    assert pair("Say: ", "<|end|> it") == ["Say: ", "<|end|> it<|end|>"]
    # with a template it is a conversation
    assert pair("Hi", "Hello", "llama3")[1] == "Hello<|eot_id|>"


def test_a_conversation_with_nothing_to_learn_is_refused_and_others_are_encoded() -> None:
    batch = [
        Conversation(tuple(turns("Hi", "Hello"))),
        Conversation(tuple(turns("Hi"))),
        Conversation(tuple(turns("Hi", "bad \ud800"))),
        Conversation(tuple(turns("Hi", "there"))),
        Conversation(({"role": "system", "content": "x"}, *turns("Hi", "a"))),
    ]
    results = encoder("mistral").encode(batch)
    reasons = [one.reason if isinstance(one, InvalidConversation) else "" for one in results]
    assert reasons == ["", "nothing to learn", "not Unicode", "", "refused by the template"]
    assert encoder("mistral").encode([]) == []
    endless = encoder("qwen25").encode([Conversation(tuple(turns(*["x"] * 1002)))])[0]
    assert isinstance(endless, InvalidConversation)
    assert endless.reason == "too many messages"


def test_special_tokens_of_a_model_are_those_stored() -> None:
    special = read_special(model("mistral"))
    assert (special.end, special.names["bos_token"]) == ("</s>", "<s>")
