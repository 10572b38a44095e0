"""Special tokens of a tokenizer.json: the token that ends a document, and the chat template.

Hugging Face keeps these in files beside tokenizer.json, and readers must choose between them. Here
they are stored once, in the entry of the end token. `tokenizers` ignores unknown fields of an added
token, so the file stays a plain tokenizer.json, and one hash covers everything.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.catalog.shapes import LARGEST
from penstock.errors import PenstockError
from penstock.untrusted import parse_json, preview

END = "<|end|>"  # closes each document, in tokenizers trained by Penstock
_KEY = "penstock"

TokenizerJson: TypeAlias = dict[str, Any]  # a tokenizer.json


@dataclass(frozen=True)
class SpecialTokens:
    """The end token, the named special tokens and the chat template of a tokenizer."""

    end: str  # the token that closes each document
    end_id: int
    names: Mapping[str, str] = field(default_factory=dict)  # for templates: bos_token → its text, …
    template: str = ""  # Jinja source of the chat template; empty: none
    origin: str = ""  # org/name@commit of a tokenizer from the hub; not stored


def parse_tokenizer(content: bytes) -> TokenizerJson:
    """Parse a tokenizer.json; drop truncation, padding and dropout, which lose or change text."""
    try:
        config = parse_json(content)
        model = config["model"]
        if "type" not in model and "vocab" not in model:
            raise KeyError("vocab")
        _check_tokens(config)
    except (ValueError, KeyError, TypeError) as error:
        raise PenstockError(
            f"This is not a tokenizer.json: {type(error).__name__} {error}. "
            "Give the file that `tokenizers` or a Hugging Face model saves under that name."
        ) from None
    config["truncation"] = config["padding"] = None
    if model.get("dropout"):
        model["dropout"] = None
    return config


def _check_tokens(config: TokenizerJson) -> None:
    """Raise ValueError unless each token has a text and a valid id."""
    vocab, added = config["model"].get("vocab") or {}, config.get("added_tokens") or []
    if not isinstance(vocab, dict | list) or not isinstance(added, list):
        raise ValueError("its vocabulary is no list of tokens")
    if isinstance(vocab, list):  # Unigram
        if not all(isinstance(one, list) and len(one) == 2 for one in vocab):
            raise ValueError("its vocabulary is not pairs of a token and a score")
    elif not all(map(_is_id, vocab.values())):
        raise ValueError("its vocabulary is not numbers from 0 on")
    for one in added:
        if not isinstance(one, dict) or not isinstance(one.get("content"), str):
            raise ValueError("an added token has no content")
        if not _is_id(one.get("id")):
            raise ValueError(f"the added token {preview(one['content'])} has no id")
        kept = one.get(_KEY)
        if isinstance(kept, dict):
            names = kept.get("names", {})
            texts = [*names, *names.values()] if isinstance(names, dict) else [None]
            if not all(isinstance(text, str) for text in [*texts, kept.get("template", "")]):
                raise ValueError(f"what is stored with {preview(one['content'])} is no text")


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST["vocab"]


def added_tokens(config: TokenizerJson) -> list[TokenizerJson]:
    added = config.get("added_tokens") or []
    assert isinstance(added, list)
    return added


def special_tokens(config: TokenizerJson) -> list[str]:
    """Return the tokens that text is never encoded as, by id."""
    special = [token for token in added_tokens(config) if token.get("special")]
    return [str(token["content"]) for token in sorted(special, key=lambda token: token["id"])]


def token_id(config: TokenizerJson, token: str) -> int | None:
    for one in added_tokens(config):
        if one.get("content") == token:
            return int(one["id"])
    vocab = config["model"].get("vocab", {})
    if isinstance(vocab, dict):
        return vocab.get(token)
    return next((at for at, (piece, _) in enumerate(vocab) if piece == token), None)  # Unigram


def stored_special(config: TokenizerJson) -> SpecialTokens | None:
    """Return the special tokens stored in the file, or our END if it has it; else None."""
    for token in added_tokens(config):
        kept = token.get(_KEY)
        if isinstance(kept, dict):
            return SpecialTokens(
                token["content"], token["id"], kept.get("names", {}), kept.get("template", "")
            )
    end = token_id(config, END)
    return None if end is None else SpecialTokens(END, end)


def read_special(content: bytes) -> SpecialTokens:
    """Return the special tokens of a dataset's tokenizer.json, which must have them."""
    special = stored_special(parse_tokenizer(content))
    if special is None:
        raise PenstockError(
            f"The tokenizer has no {END} token, which must close each document, and names no "
            "other. Build the dataset again, with tokens.end set to the token that should."
        )
    return special


def with_special(content: bytes, special: SpecialTokens) -> bytes:
    """Return the tokenizer.json with `special` stored in it; unchanged if it already is."""
    config = json.loads(content)
    if stored_special(config) == SpecialTokens(
        special.end, special.end_id, special.names, special.template
    ):
        return content
    added = config["added_tokens"] = added_tokens(config)
    for token in added:
        token.pop(_KEY, None)
    entry = next((token for token in added if token["content"] == special.end), None)
    if entry is None:
        entry = {"id": special.end_id, "content": special.end, "single_word": False}
        entry |= {"lstrip": False, "rstrip": False, "normalized": False}
        added.append(entry)
        added.sort(key=lambda token: token["id"])
    entry["special"] = True  # so that a text that spells it out does not end there
    entry[_KEY] = {"names": dict(sorted(special.names.items())), "template": special.template}
    return json.dumps(config, ensure_ascii=False, separators=(",", ":")).encode()
