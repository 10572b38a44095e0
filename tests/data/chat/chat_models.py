"""Tokenizers with the chat templates of known models, small enough to train in a test."""

from functools import cache

from tokenizers import Tokenizer as Engine

from penstock.data.tokenize.special import SpecialTokens, with_special
from penstock.data.tokenize.train import train_tokenizer

TEXTS = [
    "Hello world, how are you doing today? I am the assistant of the user.\n\n",
    "def add(self, value):\n    return self.value + value  # grün, 日本語\n",
] * 40

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) \
or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# Past turns lose what the assistant thought, the newest keeps it.
THINKS = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}\
{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)
# The system's words stand before the last user's, wherever that is.
MISTRAL_SYSTEM = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
ZEPHYR = (
    "{% for message in messages %}\n{{ '<|' + message['role'] + '|>\n' + message['content'] "
    "+ eos_token }}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
GENERATION = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}
{{- '\\n' }}
{%- endfor %}
"""
NO_PROMPT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)

IM = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# name → (template, special tokens, END, names)
MODELS: dict[str, tuple[str, list[str], str, dict[str, str]]] = {
    "llama3": (LLAMA3, HEADERS, "<|eot_id|>", {"bos_token": "<|begin_of_text|>"}),
    "qwen25": (QWEN25, IM, "<|im_end|>", {"eos_token": "<|im_end|>"}),
    "thinks": (THINKS, IM, "<|endoftext|>", {}),
    "llama3-thinks": (
        THINKS.replace("<|im_start|>", "<|start_header_id|>")
        .replace("\\n' + content", "<|end_header_id|>\\n\\n' + content")
        .replace("assistant\\n'", "assistant<|end_header_id|>\\n\\n'")
        .replace("<|im_end|>\\n", "<|eot_id|>"),
        HEADERS,
        "<|eot_id|>",
        {},
    ),
    "mistral": (MISTRAL, ["<s>", "</s>"], "</s>", {"bos_token": "<s>", "eos_token": "</s>"}),
    "mistral-system": (
        MISTRAL_SYSTEM,
        ["<s>", "</s>", "[INST]", "[/INST]"],
        "</s>",
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "zephyr": (ZEPHYR, ["<s>", "</s>"], "</s>", {"bos_token": "<s>", "eos_token": "</s>"}),
    "generation": (GENERATION, IM, "<|endoftext|>", {}),
    "no-prompt": (NO_PROMPT, IM, "<|endoftext|>", {}),
    "default": ("", [], "<|end|>", {}),
}


@cache
def base() -> bytes:
    return train_tokenizer(TEXTS, 600)


@cache
def model(name: str) -> bytes:
    """Its tokenizer.json, as a dataset stores it."""
    template, special, end, names = MODELS[name]
    engine = Engine.from_str(base().decode())
    engine.add_special_tokens(special)
    stored = SpecialTokens(end, engine.token_to_id(end), names, template)
    return with_special(engine.to_str().encode(), stored)
