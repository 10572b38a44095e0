"""From what the user names (files, folders, globs, URLs, hub names) to files in a fixed order.

Names are relative to what was given, with '/', and sorted by their bytes, so that a source has the
same documents in the same order wherever it lies. A folder is a fence: a link that leads out of it
is kept aside, links to folders are not followed (they can go round in circles), and what is not a
regular file is never opened for reading.
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
    given: Iterable[str | Path], kind: str = "", choice: HubSelection | None = None
) -> Iterator[RawFile | Rejected]:
    """The files of each path, folder, glob, URL or hub name, in the order given.

    `kind` overrides the names'; `choice` picks from a Hugging Face dataset.
    """
    if kind not in {"", *KINDS.values()}:
        raise PenstockError(
            f"Files of kind {kind!r} cannot be read. Use text, jsonl, csv, parquet or arrow, or "
            "leave it out."
        )
    choice = choice or HubSelection()
    for one in given:
        found = sorted(_expand(one, choice), key=lambda entry: entry.name)
        if not found:
            raise PenstockError(
                f"{one} names no file: it does not exist, is empty or matches nothing. "
                "Give a file, a folder or a glob such as 'corpus/*.jsonl.gz'."
            )
        for entry in found:
            yield _to_file(entry, kind)


def open_file(file: RawFile) -> BinaryIO:
    """The stored bytes of a file, to read and to seek in; an OSError where that cannot be."""
    if file.path.startswith(hub.SCHEME):
        return _open_path(hub.download_file(file.path))
    return remote.open_remote(file) if is_url(file.path) else open_local(file)


def open_local(file: RawFile) -> BinaryIO:
    """Never blocks on a pipe and never reads a device, also when one took the file's place."""
    return _open_path(file.path)


def _open_path(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _expand(given: str | Path, choice: HubSelection) -> Iterator[SourceEntry]:
    if isinstance(given, str) and given.startswith("hf:"):
        yield from hub.list_dataset(given, choice)
        return
    if isinstance(given, str) and is_url(given):
        yield from remote.list_url(given)
        return
    path = Path(given)
    if path.is_dir():
        walked = _walk(os.path.realpath(path), str(path), b"")
        yield from mark_saved_dataset_files(list(walked), choice.split)
    elif path.exists():
        yield SourceEntry(os.fsencode(path.name), str(path))
    elif glob.has_magic(str(path)):
        yield from _glob(path)


def _walk(fence: str, folder: str, prefix: bytes) -> Iterator[SourceEntry]:
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        yield SourceEntry(prefix.rstrip(b"/"), folder, f"cannot be listed: {error.strerror}")
        return
    for entry in listed:
        name = prefix + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(fence, entry.path, name + b"/")
        else:
            yield SourceEntry(name, entry.path, _problem_of(fence, entry.path))


def _glob(pattern: Path) -> Iterator[SourceEntry]:
    plain = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    start = str(Path(*plain))
    fence = os.path.realpath(start)
    for path in glob.iglob(str(pattern), recursive=True):
        if not os.path.isdir(path) or os.path.islink(path):
            yield SourceEntry(
                os.fsencode(os.path.relpath(path, start)), path, _problem_of(fence, path)
            )


def _problem_of(fence: str, path: str) -> str:
    """What speaks against reading this entry of a folder, or nothing."""
    if os.path.basename(path).startswith("."):
        return "hidden"
    try:
        mode = os.stat(path).st_mode  # follows links; a circle of links is an OSError
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    real = os.path.realpath(path)
    if os.path.commonpath([fence, real]) != fence:
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
    """A name of any bytes as text that can be stored and printed."""
    return name.decode("utf-8", "backslashreplace")


def mark_saved_dataset_files(found: list[SourceEntry], split: str) -> Iterator[SourceEntry]:
    """The same entries; those that are no data of a saved dataset, or of another split, say so."""
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
