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
from pathlib import Path
from typing import BinaryIO

from penstock.data.format.locate import KINDS, PACKINGS
from penstock.data.sources import hub, remote
from penstock.data.sources.files import Choice, File, Found
from penstock.data.sources.pieces import Rejected
from penstock.data.sources.saved import without_descriptions
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError


def find(
    given: Iterable[str | Path], kind: str = "", choice: Choice | None = None
) -> Iterator[File | Rejected]:
    """The files of each path, folder, glob, URL or hub name, in the order given.

    `kind` overrides the names'; `choice` picks from a Hugging Face dataset.
    """
    if kind not in {"", *KINDS.values()}:
        raise PenstockError(
            f"Files of kind {kind!r} cannot be read. Use text, jsonl, csv, parquet or arrow, or "
            "leave it out."
        )
    choice = choice or Choice()
    for one in given:
        found = sorted(_expand(one, choice), key=lambda entry: entry.name)
        if not found:
            raise PenstockError(
                f"{one} names no file: it does not exist, is empty or matches nothing. "
                "Give a file, a folder or a glob such as 'corpus/*.jsonl.gz'."
            )
        for entry in found:
            yield _typed(entry, kind)


def open_file(file: File) -> BinaryIO:
    """The stored bytes of a file, to read and to seek in; an OSError where that cannot be."""
    if file.path.startswith(hub.SCHEME):
        return _open_path(hub.download(file.path))
    return remote.open_remote(file) if is_url(file.path) else open_local(file)


def open_local(file: File) -> BinaryIO:
    """Never blocks on a pipe and never reads a device, also when one took the file's place."""
    return _open_path(file.path)


def _open_path(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _expand(given: str | Path, choice: Choice) -> Iterator[Found]:
    if isinstance(given, str) and given.startswith("hf:"):
        yield from hub.listed(given, choice)
        return
    if isinstance(given, str) and is_url(given):
        yield from remote.listed(given)
        return
    path = Path(given)
    if path.is_dir():
        walked = _walk(os.path.realpath(path), str(path), b"")
        yield from without_descriptions(list(walked), choice.split)
    elif path.exists():
        yield Found(os.fsencode(path.name), str(path))
    elif glob.has_magic(str(path)):
        yield from _glob(path)


def _walk(fence: str, folder: str, prefix: bytes) -> Iterator[Found]:
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        yield Found(prefix.rstrip(b"/"), folder, f"cannot be listed: {error.strerror}")
        return
    for entry in listed:
        name = prefix + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(fence, entry.path, name + b"/")
        else:
            yield Found(name, entry.path, _against(fence, entry.path))


def _glob(pattern: Path) -> Iterator[Found]:
    plain = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    start = str(Path(*plain))
    fence = os.path.realpath(start)
    for path in glob.iglob(str(pattern), recursive=True):
        if not os.path.isdir(path) or os.path.islink(path):
            yield Found(os.fsencode(os.path.relpath(path, start)), path, _against(fence, path))


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


def _typed(entry: Found, kind: str) -> File | Rejected:
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
    return File(name, entry.path, kind, packing, entry.bytes, entry.stamp)


def _readable(name: bytes) -> str:
    """A name of any bytes as text that can be stored and printed."""
    return name.decode("utf-8", "backslashreplace")
