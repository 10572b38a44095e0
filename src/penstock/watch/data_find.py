"""From what a user types to a dataset that is there: a name, a folder or a URL. Builds nothing."""

from dataclasses import dataclass
from pathlib import Path

from penstock.data.home import datasets_home, open_dataset, versions
from penstock.data.manifest import MANIFEST, Manifest, read_manifest
from penstock.data.remote_store import is_url
from penstock.data.shards import Dataset
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Listed:
    folder: Path
    manifest: Manifest | None  # None: it cannot be read
    problem: str


def open_there(spec: str) -> Dataset:
    return Dataset.open(locate(spec))


def locate(spec: str) -> Path | str:
    """The folder or URL, which need not be whole."""
    if is_url(spec):
        return spec
    if (Path(spec) / MANIFEST).is_file() or "/" in spec:
        return Path(spec)
    home, name = datasets_home(), spec.partition("@")[0]
    there = versions(home, name)
    if "@" in spec and spec.partition("@")[2] in there:
        return home / spec
    if "@" not in spec and len(there) == 1:
        return home / f"{name}@{there[0]}"
    return open_dataset(spec).folder  # a pointer may say which; else it tells what there is


def check(spec: str) -> tuple[str, list[str]]:
    """Its name, and a line for each file that is not as it was built."""
    where = locate(spec)
    if isinstance(where, str):
        dataset = Dataset.open(where)
    else:
        try:
            manifest = read_manifest(where)
        except PenstockError as error:
            if not (where / MANIFEST).exists():
                raise
            return str(where), [str(error)]
        # Not `Dataset.open`: it stops at the first file that has another size.
        dataset = Dataset(where, manifest)
    return dataset.id, dataset.verify()


def listed() -> list[Listed]:
    """Every dataset in the home, by name and version."""
    return [_listed(folder) for folder in sorted(datasets_home().glob("[!.]*@*"))]


def _listed(folder: Path) -> Listed:
    try:
        return Listed(folder, read_manifest(folder), "")
    except PenstockError as error:
        return Listed(folder, None, str(error))
