"""Models of the Hugging Face hub, in the cache that transformers uses too.

The cache is read without the hub's library, which takes half a second to import: a run file that
names a model of the hub is loaded by every rank and every verb.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

_SCHEME = "hf:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


class ModelNotFound(PenstockError):
    """A model that is not here and that the hub did not deliver."""


def is_name(model: str) -> bool:
    """Return whether this can be a hub model: `hf:org/name` or org/name."""
    return model.startswith(_SCHEME) or bool(_NAME.fullmatch(model))


def find_cached(model: str, needed: str) -> Path | None:
    """Return the folder of a model in the cache, if it has the file `needed`; no network."""
    name, _, revision = model.removeprefix(_SCHEME).partition("@")
    repository = _cache() / f"models--{name.replace('/', '--')}"
    named = repository / "refs" / (revision or "main")
    try:
        commit = named.read_text().strip() if named.is_file() else revision
    except OSError:
        return None
    folder = repository / "snapshots" / commit
    return folder if commit and (folder / needed).is_file() else None


def fetch(model: str, files: list[str], needed: str) -> Path:
    """Download the `files` (patterns) that the hub has; return the folder of the model."""
    name, _, revision = model.removeprefix(_SCHEME).partition("@")
    hub, errors = _hub(model, "huggingface_hub"), _hub(model, "huggingface_hub.errors")
    try:
        folder = Path(
            hub.snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=files,
                endpoint=os.environ.get("HF_ENDPOINT"),
                cache_dir=_cache(),
            )
        )
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise ModelNotFound(_why(model, name, error)) from None
    if not (folder / needed).is_file():
        raise ModelNotFound(
            f'model.from = "{model}": {name} on the hub has no {needed}; is it a model?'
        )
    return folder


def _cache() -> Path:
    """Return the cache folder of the hub's own library."""
    own = os.environ.get("HF_HUB_CACHE")
    above = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(above, "huggingface")
    return Path(own or os.path.join(home, "hub")).expanduser()


def _hub(model: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ModelNotFound(
            f'model.from = "{model}": there is no such folder, and fetching it from the hub needs '
            f"huggingface_hub, which cannot be imported ({error}). Install it where Penstock is: "
            "pip install 'penstock[data]'"
        ) from None


def _why(model: str, name: str, error: Exception) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
    kind = type(error).__name__
    if kind == "GatedRepoError":
        why = "its owner must let you in first: ask on its page, then set HF_TOKEN"
    elif kind == "RepositoryNotFoundError":
        why = "there is no such model, or it is private and HF_TOKEN is not set"
    elif kind == "RevisionNotFoundError":
        why = "it has no such revision"
    elif kind == "HFValidationError":
        why = f"that is no name of a model ({said})"
    else:
        why = f"the hub cannot be reached or gave an error ({said or kind})"
    return (
        f'model.from = "{model}": {name} is no folder here and cannot be fetched from the hub: '
        f"{why}. Check the name, the network and HF_ENDPOINT; or write the folder of a model that "
        "you have downloaded"
    )
