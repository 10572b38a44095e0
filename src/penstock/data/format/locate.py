"""Find what `[data] dataset` names. Nothing is opened or built here.

`open_dataset` and the plan both ask here, so that they agree on what a name means and refuse the
same names with the same words. Imports no numpy: a plan answers at once.
"""

import re
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Literal

from penstock.data.format.manifest import MANIFEST
from penstock.data.format.named import STDLIB, datasets_home, named
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.found import located, place_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Located:
    """What a dataset's name stands for, and where it lies."""

    kind: Literal["stdlib", "url", "recipe", "built", "raw"]
    where: str  # the name, from the current folder
    path: Path  # of a recipe or a built dataset


def locate(spec: str) -> Located:
    """Find a dataset: a name, name@version, a recipe, a folder, raw files, a URL or hf:org/name.

    What lies at a path goes before a dataset of that name.
    """
    try:
        return _located(spec)
    except OSError as error:
        raise PenstockError(
            f"Dataset {spec!r} cannot be read: {error.strerror or error}. Check the path and its "
            "rights"
        ) from None
    except RuntimeError as error:  # of `~name`, where nobody has that name
        raise PenstockError(f"Dataset {spec!r} cannot be read: {error} Write the path") from None


def _located(given: str) -> Located:
    spec, path = located(given), place_of(given)
    if spec == STDLIB:
        return Located("stdlib", spec, path)
    if is_url(spec):
        return Located("url", spec, path)
    if path.suffix == ".toml" and path.is_file():
        return Located("recipe", spec, path)
    if (path / MANIFEST).is_file():
        return Located("built", spec, path)
    if spec.startswith("hf:") or (spec and path.exists()) or has_magic(spec):
        return Located("raw", spec, path)
    if not _NAME.fullmatch(spec.partition("@")[0]):
        raise PenstockError(
            f"Dataset {spec!r}: there is no such file, and it is not a name. Give the name of a "
            "dataset, name@version, a recipe (.toml), a file, a folder, a glob, a URL or "
            "hf:org/name."
        )
    return Located("built", spec, named(datasets_home(), spec))
