"""Rendered text is, character for character, what the models' own code makes of a conversation."""

import resource
import time

import pytest
from chat_models import MODELS

from penstock.data.chat import limits
from penstock.data.chat.template import DEFAULT_TEMPLATE, ChatTemplate
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.special import SpecialTokens
from penstock.errors import PenstockError

TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": " More? "},
]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TALK]


def template(name: str) -> ChatTemplate:
    source, _, end, names = MODELS[name]
    return ChatTemplate(source or DEFAULT_TEMPLATE, SpecialTokens(end, 0, names))


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        (
            "llama3",
            SYSTEM,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nMore?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "qwen25",
            TALK,
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
            "<|im_start|>user\n More? <|im_end|>\n<|im_start|>assistant\n",
        ),
        ("mistral", TALK, "<s>[INST] Hi [/INST] Hello!</s>[INST]  More?  [/INST]"),
        (
            "mistral-system",
            SYSTEM,
            "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n More? [/INST]",
        ),
        ("zephyr", TALK, "<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\n More? </s>\n"
         "<|assistant|>\n"),
        (
            "default",
            SYSTEM,
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n"
            "<|user|>\n More? <|end|>\n<|assistant|>\n",
        ),
    ],
)  # fmt: skip
def test_known_templates_render_as_expected(
    name: str, messages: list[dict[str, str]], expected: str
) -> None:
    assert template(name).render(messages, add_generation_prompt=True) == expected


def test_tools_and_their_calls() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1, "ü": "<b>"}}}
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    text = template("qwen25").render(messages, tools=[{"name": "add"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n\n<tools>\n"
        '{"name": "add"}\n</tools><|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n'
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "ü": "<b>"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
    )
    assert template("default").render(messages[:2], tools=[{"name": "add"}]) == (
        '<|system|>\n[{"name": "add"}]<|end|>\n<|user|>\n1+1?<|end|>\n'
        '<|assistant|>\n[{"function": {"name": "add", "arguments": {"a": 1, "ü": "<b>"}}}]'
        "<|end|>\n"
    )


def rendered(source: str) -> str:
    return ChatTemplate(source, SpecialTokens("</s>", 0, {"bos_token": "<s>"})).render(TALK)


def test_templates_get_the_same_helpers_as_in_transformers() -> None:
    assert rendered("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"  # blanks around blocks go
    assert rendered("{% for m in messages %}{% break %}{% endfor %}{{ bos_token }}") == "<s>"
    assert rendered("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert rendered("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert rendered("{{ tools is none }}{{ eos_token is defined }}") == "TrueFalse"
    assert rendered("{% generation %}a{% endgeneration %}b") == "ab"


def test_the_current_date_is_fixed() -> None:
    assert rendered("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    with_default = (
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}mine{% endif %}"
    )
    assert rendered(with_default) == "mine"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only one turn') }}",
        "{{ messages[7].content.x }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of a sandbox
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_refuses_the_conversation(source: str) -> None:
    with pytest.raises(InvalidConversation) as refused:
        rendered(source)
    assert refused.value.reason == "refused by the template"


def test_a_broken_template_is_reported() -> None:
    with pytest.raises(PenstockError, match=r"not valid Jinja: line 2"):
        ChatTemplate("\n{% for %}", SpecialTokens("</s>", 0))


GROWING = (
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = GROWN %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'long ' * 100 }}{% endfor %}"
        "{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(9) }}"
        "{{ m(50) }}",
        "{% for i in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | list | sort | join %}{% endfor %}",
        "{{ 9 ** 999999999 }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ 'a'.ljust(10 ** 11) }}",
        "{{ 'a' | center(10 ** 11) }}",
        "{{ ('a' * 10 ** 7).replace('a', 'b' * 10 ** 7) }}",
        *(
            GROWING.replace("GROWN", grown)
            for grown in (
                "ns.x + ns.x", "ns.x ~ ns.x", "[ns.x, ns.x] | join", "ns.x * 2",
                "(ns.x | length) ** 999", "ns.x.replace('a', 'aaa')",
            )
        ),
        "{% set x %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}{{ x }}",
    ],
)  # fmt: skip
def test_a_template_without_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CPU_S", 1.0)
    monkeypatch.setattr(limits, "MOST_MEMORY", 256 << 20)
    began = time.monotonic()
    with pytest.raises((InvalidConversation, PenstockError)):
        rendered(source)
    assert time.monotonic() - began < 60.0
    used = resource.getrlimit(resource.RLIMIT_AS)
    assert used[0] == resource.RLIM_INFINITY or used[0] > 1 << 40  # given back


def test_a_template_that_never_ends_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROUNDS", 10_000)
    made = ChatTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        SpecialTokens("</s>", 0),
    )
    for _ in range(2):
        with pytest.raises(InvalidConversation) as refused:
            made.render(TALK)
        assert refused.value.detail == "stopped: it goes round too often"
    with pytest.raises(PenstockError, match="does not end: it goes round too often"):
        made.render(TALK)


@pytest.mark.parametrize(
    "source", ["{% if a %}" * 5000, "{{ " + "(" * 5000, "{{ [" * 9 + "x" * (2 << 20)]
)
def test_a_template_that_cannot_be_compiled_is_reported(source: str) -> None:
    with pytest.raises(PenstockError, match="chat template"):
        ChatTemplate(source, SpecialTokens("</s>", 0))


def test_long_conversations_are_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROUNDS", 10_000)
    source = "{% for m in messages %}{% for i in range(200) %}{{ i }}{% endfor %}{% endfor %}"
    assert len(ChatTemplate(source, SpecialTokens("</s>", 0)).render(TALK * 300)) > 200_000
