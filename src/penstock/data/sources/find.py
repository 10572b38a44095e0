"""Expand paths, folders, globs, URLs and hub names to files in a fixed order.

Names are relative to the given path, use '/', and are sorted by their bytes, so that a source has
the same documents in the same order wherever it is stored. Nothing outside a given folder is read:
a link that leads out of it is rejected. Links to folders are not followed, since they can form
circles, and only regular files are opened.
"""

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from penstock.data.format.locate import KINDS, PACKINGS
from penstock.data.sources import hub, remote
from penstock.data.sources.documents import Rejected
from penstock.data.sources.files import HubSelection, RawFile, SourceEntry
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.untrusted import read_json

_DESCRIBE = {b"state.json", b"dataset_info.json", b"dataset_dict.json"}


def find_files(
    paths: Iterable[str | Path], kind: str = "", choice: HubSelection | None = None
) -> Iterator[RawFile | Rejected]:
    """Yield the files of each path, folder, glob, URL or hub name, in the given order.

    `kind` overrides the kind by name; `choice` selects a part of a Hugging Face dataset.
    """
    if kind not in {"", *KINDS.values()}:
        raise PenstockError(
            f"Files of kind {kind!r} cannot be read. Use text, jsonl, csv, parquet or arrow, or "
            "leave it out."
        )
    choice = choice or HubSelection()
    for where in paths:
        entries = sorted(_expand(where, choice), key=lambda entry: entry.name)
        if not entries:
            raise PenstockError(
                f"{where} names no file: it does not exist, is empty or matches nothing. "
                "Give a file, a folder or a glob such as 'corpus/*.jsonl.gz'."
            )
        for entry in entries:
            yield _to_file(entry, kind)


def open_file(file: RawFile) -> BinaryIO:
    """Open the stored bytes of a file for reading and seeking; raise OSError if that fails."""
    if file.path.startswith(hub.SCHEME):
        return _open_path(hub.download_file(file.path))
    return remote.open_remote(file) if is_url(file.path) else _open_path(file.path)


def _open_path(path: str) -> BinaryIO:
    """Open a regular file. Never block on a pipe or read a device that replaced the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _expand(where: str | Path, choice: HubSelection) -> Iterator[SourceEntry]:
    if isinstance(where, str) and where.startswith("hf:"):
        yield from hub.list_dataset(where, choice)
        return
    if isinstance(where, str) and is_url(where):
        yield from remote.list_url(where)
        return
    path = Path(where)
    if path.is_dir():
        walked = _walk(os.path.realpath(path), str(path), b"")
        yield from mark_saved_dataset_files(list(walked), choice.split)
    elif path.exists():
        yield SourceEntry(os.fsencode(path.name), str(path))
    elif glob.has_magic(str(path)):
        yield from _glob(path)


def _walk(root: str, folder: str, prefix: bytes) -> Iterator[SourceEntry]:
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        yield SourceEntry(prefix.rstrip(b"/"), folder, f"cannot be listed: {error.strerror}")
        return
    for entry in listed:
        name = prefix + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(root, entry.path, name + b"/")
        else:
            yield SourceEntry(name, entry.path, _problem_of(root, entry.path))


def _glob(pattern: Path) -> Iterator[SourceEntry]:
    plain = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    start = str(Path(*plain))
    root = os.path.realpath(start)
    for path in glob.iglob(str(pattern), recursive=True):
        if not os.path.isdir(path) or os.path.islink(path):
            yield SourceEntry(
                os.fsencode(os.path.relpath(path, start)), path, _problem_of(root, path)
            )


def _problem_of(root: str, path: str) -> str:
    """Return the reason not to read this entry of a folder; empty if there is none."""
    if os.path.basename(path).startswith("."):
        return "hidden"
    try:
        mode = os.stat(path).st_mode  # follows links; a circle of links raises OSError
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    real = os.path.realpath(path)
    if os.path.commonpath([root, real]) != root:
        return "outside of the source"
    if stat.S_ISDIR(mode):
        return "link to a folder"
    return "" if stat.S_ISREG(mode) else "not a regular file"


def _to_file(entry: SourceEntry, kind: str) -> RawFile | Rejected:
    name = _readable(entry.name)
    if entry.problem:
        reason, _, detail = entry.problem.partition(": ")
        return Rejected(name, reason, detail)
    stem, suffix = os.path.splitext(name.lower())
    packing = PACKINGS.get(suffix, "")
    if packing:
        suffix = os.path.splitext(stem)[1]
    kind = kind or KINDS.get(suffix, "")
    if not kind:
        return Rejected(name, "unknown kind of file", f"{suffix or 'no suffix'}; name a kind")
    return RawFile(name, entry.path, kind, packing, entry.bytes, entry.stamp)


def _readable(name: bytes) -> str:
    """Return a name of any bytes as text that can be stored and printed."""
    return name.decode("utf-8", "backslashreplace")


def mark_saved_dataset_files(found: list[SourceEntry], split: str) -> Iterator[SourceEntry]:
    """Yield the entries of a folder; mark those that a saved dataset (`datasets`) does not read.

    These are the files that describe the dataset, files that it does not name, and other splits.
    """
    saved = {}  # folder → the names of its data files
    for entry in found:
        folder, _, name = entry.name.rpartition(b"/")
        if name == b"state.json" and (listed := _data_files(Path(entry.path))) is not None:
            saved[folder] = listed
    for entry in found:
        folder, _, name = entry.name.rpartition(b"/")
        if entry.problem or not saved:
            yield entry
        elif name in _DESCRIBE:
            yield replace(entry, problem="not data: describes a saved dataset")
        elif folder in saved and name not in saved[folder]:
            yield replace(entry, problem="not data: no file that the saved dataset names")
        elif split and folder and folder.split(b"/")[0] != split.encode():
            yield replace(entry, problem=f"another split: not {split!r}")
        else:
            yield entry


def _data_files(state: Path) -> set[bytes] | None:
    try:
        files = read_json(state)["_data_files"]
        return {str(file["filename"]).encode() for file in files}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # some other state.json
