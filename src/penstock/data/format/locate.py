"""Resolution of dataset names: what `[data] dataset` names, and the folders of built datasets.

A built dataset is `name`, `name@version`, or `name@` and the first digits of its version. Nothing
is opened or built here. `open_dataset` and the planner both ask here, so that they agree on what a
name means and refuse the same names with the same words. Imports no numpy: a plan answers at once.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from glob import has_magic
from pathlib import Path
from typing import Literal

from penstock.data.format.manifest import MANIFEST
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, nearest
from penstock.found import expanded_path, located
from penstock.home import home as penstock_home

# Suffixes of raw files and what they hold; suffixes of compressed files.
KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
PACKINGS = {".gz": "gzip", ".zst": "zstd"}
STDLIB = "stdlib"  # the built-in dataset; its version depends on the Python install
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DatasetLocation:
    """The kind and place of what a dataset's name stands for."""

    kind: Literal["stdlib", "url", "recipe", "built", "raw"]
    where: str  # the name, relative to the current folder
    path: Path  # of a recipe or a built dataset


def locate_dataset(spec: str) -> DatasetLocation:
    """Find a dataset: a name, name@version, a recipe, a folder, raw files, a URL or hf:org/name.

    A file or folder at that path wins over a dataset of that name.
    """
    try:
        return _locate(spec)
    except OSError as error:
        raise PenstockError(
            f"Dataset {spec!r} cannot be read: {error.strerror or error}. Check the path and its "
            "rights"
        ) from None
    except RuntimeError as error:  # `~name` of an unknown user
        raise PenstockError(f"Dataset {spec!r} cannot be read: {error} Write the path") from None


def _locate(written: str) -> DatasetLocation:
    spec, path = located(written), expanded_path(written)
    if spec == STDLIB:
        return DatasetLocation("stdlib", spec, path)
    if is_url(spec):
        return DatasetLocation("url", spec, path)
    if path.suffix == ".toml" and path.is_file():
        return DatasetLocation("recipe", spec, path)
    if (path / MANIFEST).is_file():
        return DatasetLocation("built", spec, path)
    if spec.startswith("hf:") or (spec and path.exists()) or has_magic(spec):
        return DatasetLocation("raw", spec, path)
    if not _NAME.fullmatch(spec.partition("@")[0]):
        raise PenstockError(
            f"Dataset {spec!r}: there is no such file, and it is not a name. Give the name of a "
            "dataset, name@version, a recipe (.toml), a file, a folder, a glob, a URL or "
            "hf:org/name."
        )
    return DatasetLocation("built", spec, built_folder(datasets_home(), spec))


def datasets_home() -> Path:
    return penstock_home() / "datasets"


def built_here() -> set[str]:
    """Return `name@version` of every dataset in the home."""
    home = datasets_home()
    return {path.name for path in home.iterdir() if "@" in path.name} if home.is_dir() else set()


def built_versions(home: Path, name: str) -> list[str]:
    """Return the versions of a dataset that are in the home."""
    # No glob: a name may hold characters that a glob would read as a pattern.
    folders = [path.name.partition("@") for path in home.iterdir()] if home.is_dir() else []
    versions = [version for begin, _, version in folders if begin == name and version]
    return sorted(version for version in versions if (home / f"{name}@{version}").is_dir())


def matching_versions(home: Path, spec: str) -> list[str]:
    """Return the versions that `spec` can mean; it names a dataset if there is exactly one."""
    name, at, version = spec.partition("@")
    if at and not version:
        return []
    versions = built_versions(home, name)
    return [version] if version in versions else [v for v in versions if v.startswith(version)]


def built_folder(home: Path, spec: str) -> Path:
    """Return the folder of the one dataset that `spec` means; the error lists the candidates."""
    name, _, _ = spec.partition("@")
    versions = matching_versions(home, spec)
    if len(versions) == 1:
        return home / f"{name}@{versions[0]}"
    raise PenstockError(
        _ambiguous(home, spec, name, versions) if versions else _missing(home, spec, name)
    )


def _ambiguous(home: Path, spec: str, name: str, versions: list[str]) -> str:
    # A published folder does not change, so its change time is its build time.
    built = sorted(((_changed(home / f"{name}@{v}"), v) for v in versions), reverse=True)
    lines = "".join(f"\n  {name}@{v}  built {when:%Y-%m-%d %H:%M}" for when, v in built)
    return (
        f"Dataset {spec!r} has several versions in {home}. Name one of them, its first digits "
        f"are enough:{lines}"
    )


def _changed(folder: Path) -> datetime:
    return datetime.fromtimestamp(folder.stat().st_mtime)


def _missing(home: Path, spec: str, name: str) -> str:
    versions = built_versions(home, name)
    listed = ", ".join(f"{name}@{version}" for version in versions)
    if name == STDLIB:
        return (
            f"Dataset {spec!r} is not in {home}. There: {listed or 'none'}. A version of {name} "
            f"belongs to one Python install; {name!r} alone builds the one of this install."
        )
    if versions:
        return f"Dataset {spec!r} is not in {home}. There: {listed}."
    names = {folder.name.partition("@")[0] for folder in home.glob("[!.]*@*")} | {STDLIB}
    known = ", ".join(sorted(names))
    what = f"Dataset {spec!r} is not in {home}"
    if Path(spec).suffix in {".toml", *KINDS}:
        what = f"{spec!r} is no file in {Path.cwd()}, and no dataset in {home}"
    return f"{what}. Known: {known}. {nearest(name, names)}".rstrip()
