"""Where datasets live, and how a name becomes an open one.

A dataset is the folder NAME@VERSION in the home. Built-in datasets are built at first use, under a
lock: several processes that start together build once. A pointer file remembers which version a
given source gave, keyed by the paths, sizes and change times of its files, so that opening again
hashes no content and a changed source is built anew.
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

from penstock.data import stdlib
from penstock.data.manifest import FORMAT
from penstock.data.shards import Dataset, Progress
from penstock.data.writer import unfinished
from penstock.errors import NotYet, PenstockError, nearest
from penstock.files import write_atomic
from penstock.home import home as penstock_home

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def datasets_home() -> Path:
    return penstock_home() / "datasets"


def open_dataset(spec: str, progress: Progress | None = None) -> Dataset:
    """Opens `name@version`, or a `name` with one version; `stdlib` is built at first use."""
    home = datasets_home()
    name, _, version = spec.partition("@")
    if not _NAME.fullmatch(name):
        raise NotYet(
            f"Dataset {spec!r} is not a name or name@version, and other sources cannot be read yet."
        )
    if spec == stdlib.NAME:
        return _open_stdlib(home, progress)
    there = versions(home, name)
    if "@" not in spec and len(there) == 1:
        version = there[0]
    if version not in there:
        raise PenstockError(_not_there(home, spec, name, there))
    return _open(home, f"{name}@{version}")


def versions(home: Path, name: str) -> list[str]:
    """The built versions of a dataset."""
    return sorted(
        folder.name.partition("@")[2] for folder in home.glob(f"{name}@*") if folder.is_dir()
    )


@contextmanager
def building(home: Path, name: str, progress: Progress | None = None) -> Iterator[None]:
    """The right to build `name`: one process at a time; sweeps away what a killed build left."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / f".lock-{name}").open("w") as lock:
            _lock(lock, progress)
            for left in home.glob(f"{unfinished(name)}*"):
                shutil.rmtree(left)
            yield
    except OSError as error:
        raise PenstockError(
            f"Dataset {name!r} cannot be built in {home}: {error}. "
            "Set PENSTOCK_HOME to a folder that you may write to and that has room."
        ) from error


def _lock(lock: TextIO, progress: Progress | None) -> None:
    """Held until the file is closed, also by the death of the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if progress:
            progress("wait for another build", 0, 1)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _open(home: Path, name: str) -> Dataset:
    dataset = Dataset.open(home / name)
    if dataset.id != name:
        raise PenstockError(
            f"{dataset.folder} holds {dataset.id}: the folder was renamed or its content replaced. "
            f"Rename it to {dataset.id}, or delete it and build {name} again."
        )
    return dataset


def _open_stdlib(home: Path, progress: Progress | None) -> Dataset:
    pointer = home / f".{stdlib.NAME}-{_stdlib_key()}"
    if dataset := _follow(home, pointer):
        return dataset
    with building(home, stdlib.NAME, progress):
        # Another process may have built it while this one waited.
        if dataset := _follow(home, pointer):
            return dataset
        dataset = Dataset.open(stdlib.build(home, progress))
        write_atomic(pointer, dataset.version)
        return dataset


def _follow(home: Path, pointer: Path) -> Dataset | None:
    try:
        name = f"{stdlib.NAME}@{pointer.read_text()}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _open(home, name) if (home / name).is_dir() else None


def _stdlib_key() -> str:
    """Changes with anything that could change the dataset.

    Change times and sizes stand for the content, as they do for make. Inode numbers are left out,
    so that one image on a hundred nodes with a shared home has one key.
    """
    root = stdlib.library()
    made_by = f"{FORMAT} {stdlib.RECIPE} {platform.python_version()} "
    digest = blake3(made_by.encode() + os.fsencode(root))
    for path, stat in stdlib.python_files(root):
        digest.update(b"\n" + os.fsencode(path) + f"\0{stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:12]


def _not_there(home: Path, spec: str, name: str, there: list[str]) -> str:
    listed = ", ".join(f"{name}@{version}" for version in there)
    if there and "@" not in spec:
        return f"Dataset {name!r} has several versions in {home}. Name one of them: {listed}."
    if name == stdlib.NAME:
        return (
            f"Dataset {spec!r} is not in {home}. There: {listed or 'none'}. A version of {name} "
            f"belongs to one Python install; {name!r} alone builds that of this one."
        )
    if there:
        return f"Dataset {spec!r} is not in {home}. There: {listed}."
    names = {folder.name.partition("@")[0] for folder in home.glob("[!.]*@*")} | {stdlib.NAME}
    known = ", ".join(sorted(names))
    return f"Dataset {spec!r} is not in {home}. Known: {known}. {nearest(name, names)}".rstrip()
