"""From what the user names (files, folders, globs) to files in a fixed order.

Names are relative to what was given, with '/', and sorted by their bytes, so that a source has the
same documents in the same order wherever it lies. A folder is a fence: a link that leads out of it
is kept aside, links to folders are not followed (they can go round in circles), and what is not a
regular file is never opened for reading.
"""

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.data.source_pieces import Rejected
from penstock.errors import PenstockError

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PACKINGS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class File:
    name: str  # in ids and records
    path: str  # what `open` takes
    kind: str  # text, jsonl or parquet
    packing: str = ""  # gzip, zstd or nothing, as the name says


def find(given: Iterable[str | Path], kind: str = "") -> Iterator[File | Rejected]:
    """The files of each path, folder or glob, in the order given. `kind` overrides the names'."""
    if kind not in {"", *KINDS.values()}:
        raise PenstockError(
            f"Files of kind {kind!r} cannot be read. Use text, jsonl or parquet, or leave it out."
        )
    for one in given:
        found = sorted(_expand(Path(one)), key=lambda pair: pair[0])
        if not found:
            raise PenstockError(
                f"{one} names no file: it does not exist, is empty or matches nothing. "
                "Give a file, a folder or a glob such as 'corpus/*.jsonl.gz'."
            )
        for name, path, problem in found:
            yield _typed(_readable(name), path, problem, kind)


def open_local(file: File) -> BinaryIO:
    """Never blocks on a pipe and never reads a device, also when one took the file's place."""
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


_Found = tuple[bytes, str, str]  # relative name, path, what speaks against reading it


def _expand(given: Path) -> Iterator[_Found]:
    if given.is_dir():
        yield from _walk(os.path.realpath(given), str(given), b"")
    elif given.exists():
        yield os.fsencode(given.name), str(given), ""
    elif glob.has_magic(str(given)):
        yield from _glob(given)


def _walk(fence: str, folder: str, prefix: bytes) -> Iterator[_Found]:
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        yield prefix.rstrip(b"/"), folder, f"cannot be listed: {error.strerror}"
        return
    for entry in listed:
        name = prefix + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(fence, entry.path, name + b"/")
        else:
            yield name, entry.path, _against(fence, entry.path)


def _glob(pattern: Path) -> Iterator[_Found]:
    plain = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    start = str(Path(*plain))
    fence = os.path.realpath(start)
    for path in glob.iglob(str(pattern), recursive=True):
        if not os.path.isdir(path) or os.path.islink(path):
            yield os.fsencode(os.path.relpath(path, start)), path, _against(fence, path)


def _against(fence: str, path: str) -> str:
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


def _typed(name: str, path: str, problem: str, kind: str) -> File | Rejected:
    if problem:
        reason, _, detail = problem.partition(": ")
        return Rejected(name, reason, detail)
    stem, suffix = os.path.splitext(name.lower())
    packing = PACKINGS.get(suffix, "")
    if packing:
        suffix = os.path.splitext(stem)[1]
    kind = kind or KINDS.get(suffix, "")
    if not kind:
        return Rejected(name, "unknown kind of file", f"{suffix or 'no suffix'}; name a kind")
    return File(name, path, kind, packing)


def _readable(name: bytes) -> str:
    """A name of any bytes as text that can be stored and printed."""
    return name.decode("utf-8", "backslashreplace")
