"""Load a tokenizer from a file, a model's folder, the hub, or a built dataset.

Hugging Face spreads the end token, the names of special tokens and the chat template over several
files. They are collected and stored in the one tokenizer.json of a dataset.
"""

import os
from pathlib import Path
from typing import Any

from penstock.data.format.locate import built_versions, datasets_home, matching_versions
from penstock.data.tokenize.special import (
    END,
    SpecialTokens,
    TokenizerJson,
    parse_tokenizer,
    special_tokens,
    stored_special,
    token_id,
    with_special,
)
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.untrusted import TOKENIZER_BYTES, parse_json, read_bounded

HUB = "hf:"
_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
_GENERATION = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATE_JSON = "chat_template.json"
_FILES = [_TOKENIZER, _CONFIG, _MAP, _GENERATION, _TEMPLATE, _TEMPLATE_JSON]
_MANIFEST = "manifest.json"


def load_tokenizer(
    where: str | Path, end: str | None = None, template: str | None = None
) -> tuple[bytes, SpecialTokens]:
    """Return the tokenizer.json to store, and its special tokens.

    `where` is a tokenizer.json, a folder of a model or dataset, `hf:org/name[@revision]`, a URL or
    the name of a built dataset. `end` and `template` (Jinja source) override the tokenizer's own.
    """
    content, beside, origin = _find(where)
    try:
        config = parse_tokenizer(content)
    except PenstockError as error:
        raise PenstockError(f"Tokenizer {where}: {error}") from None
    own = stored_special(config)
    names = _names(beside) or dict(own.names if own else {})
    special = SpecialTokens(
        end=(closing := _end(where, config, end, own, beside)),
        end_id=_id(config, closing),
        names=names,
        template=_template(where, beside) or (own.template if own else ""),
        origin=origin,
    )
    if template is not None:
        special = SpecialTokens(special.end, special.end_id, names, template, origin)
    kept = with_special(content, special)
    if special.end_id in Tokenizer(kept).encode(special.end):
        raise PenstockError(
            f"Tokenizer {where}: {special.end!r} cannot end a document, as a text that spells it "
            f"becomes it. Set tokens.end to one of its special tokens: {_list_special(config)}."
        )
    return kept, special


def has_template(where: str | Path) -> bool:
    """Return whether a tokenizer has a chat template; `where` as for `load_tokenizer`."""
    content, beside, _ = _find(where)
    if _template(where, beside):
        return True
    own = stored_special(parse_tokenizer(content))
    return bool(own and own.template)


_Beside = dict[str, Any]  # file name → its JSON, or the text of the template


def _find(where: str | Path) -> tuple[bytes, _Beside, str]:
    """Return the tokenizer.json, the files beside it, and its name on the hub."""
    given = str(where)
    if given.startswith(HUB):
        folder, origin = _from_hub(given.removeprefix(HUB))
        return (*_folder(folder, given), origin)
    path = Path(given).expanduser()
    if path.is_file():
        return _read_bytes(path), {}, ""
    if path.is_dir() and not (path / _MANIFEST).is_file():
        return (*_folder(path, given), "")
    return _dataset_tokenizer(given, path), {}, ""


def _folder(folder: Path, given: str) -> tuple[bytes, _Beside]:
    file = folder / _TOKENIZER
    if not file.is_file():
        there = ", ".join(sorted(one.name for one in folder.iterdir())[:12]) or "nothing"
        raise PenstockError(
            f"Tokenizer {given}: there is no {_TOKENIZER}, only {there}. Models that keep another "
            f"format save it with `AutoTokenizer.from_pretrained(...).save_pretrained(folder)`."
        )
    return _read_bytes(file), {
        name: _read(folder / name) for name in _FILES[1:] if (folder / name).is_file()
    }


def _read_bytes(path: Path) -> bytes:
    try:
        return read_bounded(path, TOKENIZER_BYTES)
    except ValueError as error:
        raise PenstockError(f"{path} is not a {_TOKENIZER}: {error}.") from None


def _read(path: Path) -> Any:
    try:
        text = read_bounded(path).decode("utf-8")
        found = text if path.name == _TEMPLATE else parse_json(text)
        if not isinstance(found, str | dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
        return found
    except ValueError as error:
        raise PenstockError(
            f"{path} cannot be read: {error}. Save it again with the model, or remove it."
        ) from None


def _from_hub(spec: str) -> tuple[Path, str]:
    name, _, revision = spec.partition("@")
    hub = extra("huggingface_hub", f"Tokenizer {HUB}{spec}")
    errors = extra("huggingface_hub.errors", f"Tokenizer {HUB}{spec}")
    try:
        # The folder of a snapshot is named by its commit.
        folder = Path(
            hub.snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=_FILES,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        )
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        message = " ".join([line for line in str(error).splitlines() if line.strip()][:2])
        raise PenstockError(
            f"Tokenizer {HUB}{spec} cannot be fetched: {message} "
            "Check the name, the network and HF_ENDPOINT; private ones need HF_TOKEN."
        ) from error
    return folder, f"{name}@{folder.name}"


def _dataset_tokenizer(given: str, path: Path) -> bytes:
    from penstock.data.read.dataset import Dataset  # opens tokenizers itself

    if "://" in given:
        return Dataset.open(given).tokenizer_json()
    if path.is_dir():
        return Dataset.open(path).tokenizer_json()
    home = datasets_home()
    name = given.partition("@")[0]
    found = [] if "/" in given else matching_versions(home, given)
    if len(found) == 1:
        return Dataset.open(home / f"{name}@{found[0]}").tokenizer_json()
    there = ", ".join(f"{name}@{one}" for one in found or built_versions(home, name))
    raise PenstockError(
        f"Tokenizer {given!r} is neither a file or folder, nor one dataset in {home}"
        f"{f' (there: {there})' if there else ''}. Give a {_TOKENIZER}, the folder of a model, "
        f"{HUB}org/name, or the name of a built dataset."
    )


def _text(token: object) -> str:
    """Return the text of a token, which is a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _names(beside: _Beside) -> dict[str, str]:
    found = {**beside.get(_MAP, {}), **beside.get(_CONFIG, {})}
    tokens = {name: _text(token) for name, token in found.items() if name.endswith("_token")}
    return {name: token for name, token in sorted(tokens.items()) if token}


def _end(
    where: str | Path,
    config: TokenizerJson,
    wanted: str | None,
    own: SpecialTokens | None,
    beside: _Beside,
) -> str:
    if wanted:
        if token_id(config, wanted) is None:
            raise PenstockError(
                f"tokens.end = {wanted!r}: tokenizer {where} has no such token. "
                f"Its special tokens: {_list_special(config)}."
            )
        return wanted
    # Files beside tokenizer.json win: some models have a token <|end|> that only closes a turn.
    eos = _names(beside).get("eos_token") or _generation_end(config, beside)
    for token in (eos, own.end if own else ""):
        if token and token_id(config, token) is not None:
            return token
    raise PenstockError(
        f"Tokenizer {where} does not say which token ends a document: neither {END} nor an "
        f"eos_token is there. Set tokens.end to one of its special tokens: {_list_special(config)}."
    )


def _generation_end(config: TokenizerJson, beside: _Beside) -> str:
    ids = beside.get(_GENERATION, {}).get("eos_token_id")
    first = ids[0] if isinstance(ids, list) and ids else ids
    if not isinstance(first, int):
        return ""
    return next((token for token in special_tokens(config) if token_id(config, token) == first), "")


def _id(config: TokenizerJson, token: str) -> int:
    found = token_id(config, token)
    assert found is not None
    return found


def _list_special(config: TokenizerJson) -> str:
    tokens = special_tokens(config)
    return ", ".join(tokens[:20]) + (", …" if len(tokens) > 20 else "") or "none"


def _template(where: str | Path, beside: _Beside) -> str:
    found = (
        beside.get(_TEMPLATE)
        or beside.get(_TEMPLATE_JSON, {}).get("chat_template")
        or beside.get(_CONFIG, {}).get("chat_template")
        or ""
    )
    if isinstance(found, list):  # several, each with a name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise PenstockError(
            f"Tokenizer {where} has several chat templates and none is called 'default'. "
            "Save the one to use as a file and set tokens.chat_template to it."
        )
    return found
