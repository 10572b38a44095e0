"""Open models on this machine: the folder of `model.from`.

A folder, or `hf:org/name[@revision]` (also plain `org/name`) through the hub's own cache. Files
in the cache are used unchanged: a model stays the same for a run and all its processes, and no rank
uses the network. At first only the small files are fetched; `fetch_weights` fetches the rest, once,
before any process starts.
"""

from pathlib import Path
from typing import Any

from penstock.catalog.open import hub
from penstock.catalog.open.generic import generic_shape, is_generic
from penstock.catalog.open.hub import ModelNotFound
from penstock.catalog.open.models import shape_of
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.untrusted import SMALL_BYTES, TOKENIZER_BYTES, read_bounded, read_json

CONFIG = "config.json"
# Files of the tokenizer, which are copied along with the weights.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
GENERATION = "generation_config.json"
_SMALL = [CONFIG, GENERATION, *TOKENIZER_FILES]
_WEIGHTS = ["model*.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json"]


def is_local(model: str) -> bool:
    return expanded_path(model).is_dir()


def model_folder(model: str, fetch: bool = True) -> Path:
    """Return the folder of `model.from` with config and tokenizer; fetch them if needed."""
    path = expanded_path(model)
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise ModelNotFound(
                f'model.from = "{model}": {path} has no {CONFIG}; it holds {_in(path)}'
            )
        return path
    if path.exists() or not hub.is_name(model):
        what = "a file, not a folder" if path.exists() else "no such folder"
        raise ModelNotFound(
            f'model.from = "{model}": {what}; write the folder of a model that was saved for '
            "transformers, or hf:org/name"
        )
    cached = hub.find_cached(model, CONFIG)
    if cached is None and not fetch:
        raise ModelNotFound(f'model.from = "{model}" has not been fetched from the hub yet')
    return cached or hub.fetch(model, _SMALL, CONFIG)


def fetch_weights(model: str) -> Path:
    """Return the folder of `model.from` with weights; fetch them if needed."""
    folder = model_folder(model)
    if not is_local(model):
        # The commit that the config came from, whatever has been pushed since.
        pinned = f"{model.partition('@')[0]}@{folder.name}"
        return hub.fetch(pinned, [*_SMALL, *_WEIGHTS], CONFIG)
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError) as error:
        raise PenstockError(f"{folder / CONFIG} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise PenstockError(f"{folder / CONFIG} holds a {type(config).__name__}, not an object")
    return config


def read_small_files(folder: Path) -> dict[str, bytes]:
    """Read the small files that exist: config, tokenizer and the like, without weights."""
    files = {}
    for name in _SMALL:
        if not (folder / name).is_file():
            continue
        try:
            most = SMALL_BYTES if name in (CONFIG, GENERATION) else TOKENIZER_BYTES
            files[name] = read_bounded(folder / name, most)
        except ValueError as error:
            raise PenstockError(f"{folder / name} cannot be read: {error}") from None
    return files


def shape_of_model(model: str, fetch: bool = True) -> ModelShape:
    """Return the shape of `model.from`, from its config; parameters of a generic model are counted
    in the headers of its weights.
    """
    folder = model_folder(model, fetch)
    try:
        config = read_config(folder)
        return generic_shape(config, folder) if is_generic(config) else shape_of(config)
    except PenstockError as error:
        raise PenstockError(f'model.from = "{model}": {error}') from None


def _in(path: Path) -> str:
    return ", ".join(sorted(one.name for one in path.iterdir())[:12]) or "nothing"
