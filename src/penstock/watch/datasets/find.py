"""From what a user types to a dataset that is there: a name, a folder or a URL. Builds nothing."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from glob import has_magic
from pathlib import Path
from typing import Any

from penstock.data.build.open import open_dataset
from penstock.data.build.record import read_build_record
from penstock.data.format.locate import datasets_home, matching_versions
from penstock.data.format.manifest import MANIFEST, Manifest, read_manifest
from penstock.data.read.dataset import Dataset
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, system_error
from penstock.secret import redact
from penstock.watch.datasets.facts import documents_of, stored_bytes


@dataclass(frozen=True)
class Listed:
    folder: Path
    manifest: Manifest | None  # None: it cannot be read
    problem: str
    built: datetime  # UTC
    unreadable: bool = False  # the system refused; it may be whole

    def to_json(self) -> dict[str, Any]:
        row = {"dataset": self.folder.name, "where": str(self.folder)}
        row["built"] = self.built.isoformat(timespec="seconds")
        if (made := self.manifest) is None:
            return row | {"problem": self.problem}
        return row | {
            "tokens": made.tokens,
            "documents": documents_of(made),
            "vocab": made.vocab,
            "bytes": stored_bytes(made),
            "shards": len(made.shards),
            "packed": made.packed,
        }


@dataclass(frozen=True)
class Checked:
    name: str
    where: str
    problems: list[str]  # a line for each file that is not as it was built


def open_there(spec: str) -> Dataset:
    return Dataset.open(locate(spec))


def locate(spec: str) -> Path | str:
    """The folder or URL, which need not be whole."""
    if is_url(spec):
        return spec
    if (Path(spec) / MANIFEST).is_file() or "/" in spec:
        return Path(spec)
    home = datasets_home()
    found = matching_versions(home, spec)
    if len(found) == 1:
        return home / f"{spec.partition('@')[0]}@{found[0]}"
    if Path(spec).exists() or has_magic(spec) or spec.startswith("hf:"):
        raise PenstockError(
            f"{spec} is no built dataset. `penstock data build RECIPE` makes one of it, and "
            "`penstock data ls` lists those that are there."
        )
    return open_dataset(spec).folder  # a pointer may say which; else it tells what there is


def check(spec: str) -> Checked:
    where = locate(spec)
    if isinstance(where, str):
        dataset = Dataset.open(where)
    else:
        try:
            manifest = read_manifest(where)
        except PenstockError as error:
            if not (where / MANIFEST).exists():
                raise
            return Checked(str(where), str(where), [str(error)])
        # Not `Dataset.open`: it stops at the first file that has another size.
        dataset = Dataset(where, manifest)
    return Checked(dataset.id, redact(dataset.where), dataset.verify())


def listed() -> list[Listed]:
    """Every dataset in the home, the newest first."""
    home = datasets_home()
    try:
        names = [name for name in os.listdir(home) if "@" in name and not name.startswith(".")]
    except FileNotFoundError:
        names = []
    found = [_listed(home / name) for name in sorted(names)]
    return sorted(found, key=lambda one: one.built, reverse=True)


def _listed(folder: Path) -> Listed:
    try:
        return Listed(folder, read_manifest(folder), "", _built(folder))
    except PenstockError as error:
        return Listed(folder, None, str(error), _changed(folder))
    except OSError as error:
        return Listed(folder, None, system_error(error), _changed(folder), unreadable=True)


def _built(folder: Path) -> datetime:
    """As its record says, or when its manifest was written here."""
    try:
        record = read_build_record(folder)
        return datetime.fromisoformat(record.ended) if record else _changed(folder / MANIFEST)
    except (PenstockError, OSError, ValueError):
        return _changed(folder / MANIFEST)


def _changed(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:  # unknown: it is listed last
        return datetime.fromtimestamp(0, UTC)
