"""The tokenizer of a model as the harness uses it, and the length of the model's context.

Both follow the rules of the harness's own model for transformers, so that both give the same
requests. The files are those of an exported model: tokenizer.json and what lies beside it.
"""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Engine

from penstock.data.chat.template import ChatTemplate
from penstock.data.tokenize.special import (
    SpecialTokens,
    TokenizerJson,
    parse_tokenizer,
    stored_special,
    token_id,
)
from penstock.errors import PenstockError

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")
_NO_LENGTH = 2048  # tokens, where neither config nor tokenizer names one
_UNSET = 10**29  # what transformers writes for a tokenizer without a longest text


class TaskTokenizer:
    """A tokenizer that encodes text as transformers does: special tokens in it get their ids."""

    def __init__(self, files: Mapping[str, bytes], where: str) -> None:
        content = files.get("tokenizer.json")
        if content is None:
            raise PenstockError(
                f"{where} has no tokenizer.json, and tasks are text; save the tokenizer of the "
                "model there (in transformers: tokenizer.save_pretrained)"
            )
        config = parse_tokenizer(content)
        self._engine = Engine.from_str(json.dumps(config))
        told = _table(files.get("tokenizer_config.json"), f"{where}/tokenizer_config.json")
        mapped = _table(files.get("special_tokens_map.json"), f"{where}/special_tokens_map.json")
        self._adds_bos = told.get("add_bos_token")
        kept = stored_special(config)
        self.bos = _id(config, told.get("bos_token") or mapped.get("bos_token"))
        eos = _id(config, told.get("eos_token") or mapped.get("eos_token"))
        self.eos = kept.end_id if eos is None and kept else eos
        if self.eos is None:
            raise PenstockError(
                f"{where}: its tokenizer names no token that ends a text; write eos_token into "
                "tokenizer_config.json"
            )
        self.longest = told.get("model_max_length")
        names = {n: _text(told.get(n)) for n in ("bos_token", "eos_token", "pad_token")}
        source = files.get("chat_template.jinja", b"").decode() or told.get("chat_template") or ""
        self.template = source if isinstance(source, str) else ""
        end = self._engine.id_to_token(self.eos) or ""
        self._special = SpecialTokens(end, self.eos, {n: t for n, t in names.items() if t})

    @property
    def prefix(self) -> int:
        """Return the token that stands before a text without a context."""
        assert self.eos is not None
        return self.eos if self.bos is None else self.bos

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Return the ids; with `special`, with what the tokenizer adds to every text.

        None adds it unless the text begins with it already.
        """
        if special is None:
            special = not text.startswith(self.decode([self.prefix], skip_special=False))
        ids = list(self._engine.encode(text, add_special_tokens=special).ids)
        if special and self.bos is not None and isinstance(self._adds_bos, bool):
            begins = ids[:1] == [self.bos]
            if self._adds_bos and not begins:
                return [self.bos, *ids]
            if not self._adds_bos and begins:
                return ids[1:]
        return ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return self._engine.decode(ids, skip_special_tokens=skip_special)

    def render(self, messages: list[dict[str, str]], answer: bool) -> str:
        """Return a conversation as text by the chat template; `answer` begins the next turn."""
        if not self.template:
            raise PenstockError(
                "--chat: the tokenizer of this model has no chat template; leave --chat out"
            )
        chat = ChatTemplate(self.template, self._special)
        return chat.render(messages, add_generation_prompt=answer)


def context_length(config: Mapping[str, Any], tokenizer: TaskTokenizer) -> int:
    """Return the most tokens that the model takes in."""
    inner = config.get("text_config")
    for table in (inner if isinstance(inner, Mapping) else {}, config):
        for name in _LENGTHS:
            if type(found := table.get(name)) is int and found > 0:
                return int(found)
    longest = tokenizer.longest
    if isinstance(longest, int) and 0 < longest < _UNSET:
        return longest
    return _NO_LENGTH


def _table(content: bytes | None, where: str) -> dict[str, Any]:
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError as error:
        raise PenstockError(f"{where} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _text(token: object) -> str:
    """Return the text of a token, which transformers writes as text or as a table."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _id(config: TokenizerJson, token: object) -> int | None:
    text = _text(token)
    return token_id(config, text) if text else None
