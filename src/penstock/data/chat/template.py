"""Chat templates: render conversations to the same text as transformers.

A template is a Jinja program that came with a model, so it runs in Jinja's sandbox, within
`limits`. Only the date differs from transformers: a template that asks for the current date gets a
fixed one, or uses its own default, since the same sources must give the same dataset tomorrow.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from penstock.data.chat.limits import (
    TemplateLimitExceeded,
    bounded_environment,
    join_bounded,
    template_limits,
)
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.special import SpecialTokens
from penstock.errors import PenstockError
from penstock.extras import extra

# For tokenizers without a template. Each turn ends with the tokenizer's end token.
DEFAULT_TEMPLATE = """\
{%- if tools %}{{ '<|system|>\\n' + tools | tojson + end_token + '\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' }}
    {%- if message.content %}{{ message.content }}{% endif %}
    {%- if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
    {{- end_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

# Mark the content of `{% generation %}`. Lone surrogates, which no text can contain.
LEARN_START, LEARN_END = "\ud801", "\ud802"
_MARKS = re.compile(f"[{LEARN_START}{LEARN_END}]")
_LONGEST = 1 << 20  # characters of a template
_MOST_ENDLESS = 3  # conversations that may exceed the limits before the template is refused
_TODAY = date(2024, 7, 26)  # the default date of Llama 3's templates


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, special: SpecialTokens) -> None:
        jinja = extra("jinja2", "A chat template")
        self._endless = 0
        try:
            if len(source) > _LONGEST:
                raise TemplateLimitExceeded(f"it is longer than {_LONGEST:,} characters")
            with template_limits():
                self._template = _environment().from_string(source)
        except jinja.TemplateSyntaxError as error:
            raise PenstockError(
                f"The chat template is not valid Jinja: line {error.lineno}: {error.message}. "
                "Fix it, or set tokens.chat_template to another file."
            ) from None
        except Exception as error:  # nested too deeply, or constants that are too large
            raise PenstockError(
                f"The chat template cannot be compiled: {str(error)[:200] or type(error).__name__}."
                " Fix it, or set tokens.chat_template to another file."
            ) from None
        self._names: dict[str, Any] = {**special.names, "end_token": special.end}
        # A template that checks whether `strftime_now` is defined has a default date of its own.
        if not re.search(r"strftime_now is (not )?defined", source):
            self._names["strftime_now"] = _TODAY.strftime

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Render a conversation; raise InvalidConversation if the template refuses it."""
        return _MARKS.sub("", self.render_marked(messages, tools, add_generation_prompt))

    def render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Render with LEARN_START and LEARN_END around generation blocks, if there are any.

        Raise PenstockError for a template that exceeded the limits several times.
        """
        try:
            with template_limits(len(messages)):
                return join_bounded(
                    self._template.generate(
                        messages=list(messages),
                        tools=list(tools) or None,
                        documents=None,
                        add_generation_prompt=add_generation_prompt,
                        **self._names,
                    )
                )
        except TemplateLimitExceeded as error:
            self._endless += 1
            if self._endless >= _MOST_ENDLESS:
                raise PenstockError(
                    f"The chat template does not end: {error}. Set tokens.chat_template to another "
                    "file."
                ) from None
            raise InvalidConversation("refused by the template", f"stopped: {error}") from error
        except Exception as error:  # a template is a program and can fail in any way
            raise InvalidConversation("refused by the template", str(error)[:200]) from error


@lru_cache(maxsize=1)
def _environment() -> Any:
    jinja = extra("jinja2", "A chat template")
    extension: Any = extra("jinja2.ext", "A chat template").Extension

    class GenerationBlock(extension):
        """Extension for `{% generation %}…{% endgeneration %}`: the text that the model learns."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_marked")
            return jinja.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{LEARN_START}{caller()}{LEARN_END}"

    def raise_exception(message: str) -> None:
        raise jinja.TemplateError(message)

    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = bounded_environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment
