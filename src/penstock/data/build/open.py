"""Opening of datasets by name; they are built first if they do not exist.

A dataset is the folder NAME@VERSION in the home. Built-in datasets are built at first use, under a
lock: several processes that start together build once. A pointer file stores which version a source
gave, keyed by the paths, sizes and change times of its files, so that opening again hashes no
content and a changed source is built again.
"""

import fcntl
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from blake3 import blake3

from penstock.data.build import stdlib
from penstock.data.build.publish import is_published
from penstock.data.format.locate import datasets_home, locate_dataset
from penstock.data.format.manifest import FORMAT, fetch_manifest
from penstock.data.format.types import Progress
from penstock.data.format.writer import unfinished_prefix
from penstock.data.read.dataset import Dataset
from penstock.data.read.open import PlanEntry, cache_environment, open_planned
from penstock.data.store.object_path import ObjectPath
from penstock.data.store.objects import PATIENCE_S
from penstock.errors import PenstockError, RunFailed
from penstock.files import write_atomic
from penstock.run.schema.preference import NEXT_TOKEN
from penstock.run.schema.run import Run


def open_dataset(
    spec: str,
    progress: Progress | None = None,
    tokenizer: str | None = None,
    vocab: int | None = None,
    pack: int = 0,
    chat_template: str | None = None,
    objective: str = NEXT_TOKEN,
) -> Dataset:
    """Open what `[data] dataset` names; build it first if needed.

    `spec` is a name (`stdlib` is built at first use), name@version, a recipe, the folder or URL of
    a built dataset, or raw files: a file, folder, glob, URL or `hf:org/name`. A file or folder at
    that path wins over a dataset of that name. `tokenizer`, `vocab` and `objective` are for raw
    files; `pack` and `chat_template` too, if these are conversations.
    """
    home = datasets_home()
    found = locate_dataset(spec)
    if found.kind == "stdlib":
        return _open_stdlib(home, progress)
    if found.kind == "recipe":
        return _open_recipe(found.path, progress)
    if found.kind == "built":
        return open_built(found.path)
    if found.kind == "url" and fetch_manifest(found.where, PATIENCE_S) is not None:
        return Dataset.open(found.where)
    from penstock.data.build.build import build
    from penstock.data.recipe.load import raw_recipe

    recipe = raw_recipe(found.where, tokenizer, vocab, pack, chat_template, objective)
    return build(recipe, watcher=_ProgressWatcher(progress) if progress else None)


def open_or_build(run: Run, progress: Progress | None = None) -> list[Dataset]:
    """Open the datasets of a new run, in the order of the file; build those that are missing."""
    shape = run.model.base()
    vocab = (shape.vocab if shape else None) or None
    # A raw source is tokenized for the model that will read it.
    tokenizer, template = run.model.tokenizer(), run.data.chat_template
    with cache_environment(run):
        return [
            open_dataset(
                spec, progress, tokenizer, vocab, run.sequence, template, run.train.objective
            )
            for spec, _ in run.data.parts
        ]


def open_for_launch(
    run: Run, planned: "PlanEntry | None", progress: Progress | None = None
) -> list[Dataset]:
    """Open the datasets of an earlier launch; those of the run file where there was none."""
    return open_or_build(run, progress) if planned is None else open_planned(run, planned)


@contextmanager
def build_lock(home: Path, name: str, progress: Progress | None = None) -> Iterator[None]:
    """Hold the right to build `name`; remove what a killed build left."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / f".lock-{name}").open("w") as lock:
            _lock(lock, progress)
            for left in home.glob(f"{unfinished_prefix(name)}*"):
                shutil.rmtree(left)
            half_pointer = re.compile(rf"\.\.{re.escape(name)}-[0-9a-f]+\.[0-9]+")
            for left in home.glob(f"..{name}-*"):
                if half_pointer.fullmatch(left.name):
                    left.unlink()
            yield
    except BrokenPipeError:  # the reader of our output has closed it; the home is fine
        raise
    except OSError as error:
        raise RunFailed(
            f"Dataset {name!r} cannot be built in {home}: {error}. Make room there and give the "
            "same command, which goes on; or set PENSTOCK_HOME to a folder that you may write to "
            "and that has room."
        ) from error


def _lock(lock: TextIO, progress: Progress | None) -> None:
    """Lock the file until it is closed, also by the death of the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if progress:
            progress("wait for another build", 0, 1)
        fcntl.flock(lock, fcntl.LOCK_EX)


def open_built(folder: Path) -> Dataset:
    """Open a built dataset; in the home, refuse a folder whose name is not its dataset's."""
    if isinstance(folder, ObjectPath):
        return Dataset.open(folder.url)
    dataset = Dataset.open(folder)
    if folder.parent == datasets_home() and dataset.id != folder.name:
        raise PenstockError(
            f"{folder} holds {dataset.id}: the folder was renamed or its content replaced. "
            f"Rename it to {dataset.id}, or delete it and build {folder.name} again."
        )
    return dataset


def find_built_for_key(home: Path, name: str, key: str) -> Dataset | None:
    """Return the dataset that `name` gave when its sources had this key, if it still exists."""
    try:
        found = f"{name}@{_pointer(home, name, key).read_text()}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    return open_built(home / found) if is_published(home / found) else None


def remember_built(home: Path, name: str, key: str, version: str) -> None:
    """Store which version `name` gave for this key, for `find_built_for_key`."""
    pointer = _pointer(home, name, key)
    if isinstance(pointer, ObjectPath):
        pointer.write_bytes(version.encode())
    else:
        write_atomic(pointer, version)


def _pointer(home: Path, name: str, key: str) -> Path:
    return home / f".{name}-{key}"


def _open_recipe(path: Path, progress: Progress | None) -> Dataset:
    from penstock.data.build.build import build  # the whole pipeline; opening does not need it
    from penstock.data.recipe.load import load_recipe

    return build(load_recipe(path), watcher=_ProgressWatcher(progress) if progress else None)


class _ProgressWatcher:
    """A `BuildWatcher` that calls a `Progress` function with done and total."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._name = progress, "build"
        self._done, self._total = 0, 1

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        self._name, self._done, self._total = f"{name}, bytes", 0, max(total_bytes, 1)
        self._progress(self._name, 0, self._total)

    def did(self, documents: int, bytes: int) -> None:
        self._done = min(self._done + bytes, self._total)
        self._progress(self._name, self._done, self._total)

    def note(self, text: str) -> None:
        self._progress(text, 0, 1)


def _open_stdlib(home: Path, progress: Progress | None) -> Dataset:
    name, key = stdlib.NAME, _stdlib_key()
    if dataset := find_built_for_key(home, name, key):
        return dataset
    with build_lock(home, name, progress):
        # Another process may have built it while this one waited.
        if dataset := find_built_for_key(home, name, key):
            return dataset
        dataset = Dataset.open(stdlib.build(home, progress))
        remember_built(home, name, key, dataset.version)
        return dataset


def _stdlib_key() -> str:
    """Return a key that changes with anything that could change the dataset.

    Change times and sizes stand for the content, as they do in make. Inode numbers are left out,
    so that one image on a hundred nodes with a shared home has one key.
    """
    root = stdlib.library()
    made_by = f"{FORMAT} {stdlib.RECIPE} {platform.python_version()} "
    digest = blake3(made_by.encode() + os.fsencode(root))
    for path, stat in stdlib.python_files(root):
        digest.update(b"\n" + os.fsencode(path) + f"\0{stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:12]
