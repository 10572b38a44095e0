"""Datasets that exist: found by name, folder or URL, listed and verified. Builds nothing."""

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
from penstock.watch.datasets.summary import stored_bytes, unique_documents


@dataclass(frozen=True)
class ListedDataset:
    """One dataset of the home, readable or not."""

    folder: Path
    manifest: Manifest | None  # None: it cannot be read
    problem: str
    built: datetime  # UTC
    unreadable: bool = False  # the system refused access; it may be complete

    def to_json(self) -> dict[str, Any]:
        row = {"dataset": self.folder.name, "where": str(self.folder)}
        row["built"] = self.built.isoformat(timespec="seconds")
        if (made := self.manifest) is None:
            return row | {"problem": self.problem}
        return row | {
            "tokens": made.tokens,
            "documents": unique_documents(made),
            "vocab": made.vocab,
            "bytes": stored_bytes(made),
            "shards": len(made.shards),
            "packed": made.packed,
        }


@dataclass(frozen=True)
class VerifyResult:
    """The outcome of a verification."""

    name: str
    where: str
    problems: list[str]  # a line for each file that is not as it was built


def open_existing(spec: str) -> Dataset:
    return Dataset.open(locate_existing(spec))


def locate_existing(spec: str) -> Path | str:
    """Return the folder or URL of a dataset, which need not be complete."""
    if is_url(spec):
        return spec
    if (Path(spec) / MANIFEST).is_file() or "/" in spec:
        return Path(spec)
    home = datasets_home()
    found = matching_versions(home, spec)
    if len(found) == 1:
        return home / f"{spec.partition('@')[0]}@{found[0]}"
    shown = spec or "''"
    if Path(spec).exists() or has_magic(spec) or spec.startswith("hf:"):
        raise PenstockError(
            f"{shown} is no built dataset. `penstock data build RECIPE` makes one of it, "
            "and `penstock data ls` lists those that are there."
        )
    return open_dataset(spec).folder  # finds it by its pointer, or raises with the known names


def verify(spec: str) -> VerifyResult:
    where = locate_existing(spec)
    if isinstance(where, str):
        dataset = Dataset.open(where)
    else:
        try:
            manifest = read_manifest(where)
        except PenstockError as error:
            if not (where / MANIFEST).exists():
                raise
            return VerifyResult(str(where), str(where), [str(error)])
        # Not `Dataset.open`, which stops at the first file with a wrong size.
        dataset = Dataset(where, manifest)
    return VerifyResult(dataset.id, redact(dataset.where), dataset.verify())


def list_datasets() -> list[ListedDataset]:
    """Return every dataset in the home, the newest first."""
    home = datasets_home()
    try:
        names = [name for name in os.listdir(home) if "@" in name and not name.startswith(".")]
    except FileNotFoundError:
        names = []
    found = [_listed(home / name) for name in sorted(names)]
    return sorted(found, key=lambda one: one.built, reverse=True)


def _listed(folder: Path) -> ListedDataset:
    try:
        return ListedDataset(folder, read_manifest(folder), "", _built(folder))
    except PenstockError as error:
        return ListedDataset(folder, None, str(error), _changed(folder))
    except OSError as error:
        return ListedDataset(folder, None, system_error(error), _changed(folder), unreadable=True)


def _built(folder: Path) -> datetime:
    """Return the end of its build by its record, or the time its manifest was written here."""
    try:
        record = read_build_record(folder)
        return datetime.fromisoformat(record.ended) if record else _changed(folder / MANIFEST)
    except (PenstockError, OSError, ValueError):
        return _changed(folder / MANIFEST)


def _changed(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:  # unknown: list it last
        return datetime.fromtimestamp(0, UTC)
