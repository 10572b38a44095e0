"""From the name of a built dataset to its folder: `name`, `name@version`, or its first digits.

The one place that reads such names. It opens nothing and needs no package besides Python's own, so
that a plan can ask it too.
"""

from datetime import datetime
from pathlib import Path

from penstock.errors import PenstockError, nearest
from penstock.home import home as penstock_home

# Endings of raw files by what is in them, and of packed ones.
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
STDLIB = "stdlib"  # the built-in dataset, which each Python install has a version of


def datasets_home() -> Path:
    return penstock_home() / "datasets"


def built_here() -> set[str]:
    """Return `name@version` of every dataset in the home."""
    home = datasets_home()
    return {one.name for one in home.iterdir() if "@" in one.name} if home.is_dir() else set()


def versions(home: Path, name: str) -> list[str]:
    """The built versions of a dataset."""
    # A name is no pattern: a glob would take it for one.
    folders = [one.name.partition("@") for one in home.iterdir()] if home.is_dir() else []
    found = [version for begin, _, version in folders if begin == name and version]
    return sorted(one for one in found if (home / f"{name}@{one}").is_dir())


def matching(home: Path, spec: str) -> list[str]:
    """The versions that `spec` can mean; it names a dataset when there is one."""
    name, at, version = spec.partition("@")
    if at and not version:
        return []
    there = versions(home, name)
    return [version] if version in there else [one for one in there if one.startswith(version)]


def named(home: Path, spec: str) -> Path:
    """The folder of the dataset; an error that lists what there is where none or several match."""
    name, _, _ = spec.partition("@")
    found = matching(home, spec)
    if len(found) == 1:
        return home / f"{name}@{found[0]}"
    raise PenstockError(_several(home, spec, name, found) if found else _none(home, spec, name))


def _several(home: Path, spec: str, name: str, found: list[str]) -> str:
    # A folder that is published changes no more.
    built = sorted(((_changed(home / f"{name}@{one}"), one) for one in found), reverse=True)
    lines = "".join(f"\n  {name}@{one}  built {when:%Y-%m-%d %H:%M}" for when, one in built)
    return (
        f"Dataset {spec!r} has several versions in {home}. Name one of them, its first digits "
        f"are enough:{lines}"
    )


def _changed(folder: Path) -> datetime:
    return datetime.fromtimestamp(folder.stat().st_mtime)


def _none(home: Path, spec: str, name: str) -> str:
    there = versions(home, name)
    listed = ", ".join(f"{name}@{version}" for version in there)
    if name == STDLIB:
        return (
            f"Dataset {spec!r} is not in {home}. There: {listed or 'none'}. A version of {name} "
            f"belongs to one Python install; {name!r} alone builds that of this one."
        )
    if there:
        return f"Dataset {spec!r} is not in {home}. There: {listed}."
    names = {folder.name.partition("@")[0] for folder in home.glob("[!.]*@*")} | {STDLIB}
    known = ", ".join(sorted(names))
    what = f"Dataset {spec!r} is not in {home}"
    if Path(spec).suffix in {".toml", *KINDS}:
        what = f"{spec!r} is no file in {Path.cwd()}, and no dataset in {home}"
    return f"{what}. Known: {known}. {nearest(name, names)}".rstrip()
