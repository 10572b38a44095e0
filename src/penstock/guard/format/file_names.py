"""File names of a checkpoint: they stay inside its folder, whatever its records say.

Manifest, index and seal may come from a stranger. A name must be relative and must not go up, and a
symbolic link inside the folder is not followed. The folder itself may be reached through one.
"""

import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.untrusted import is_count

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}(/[A-Za-z0-9_.-]{1,255}){0,3}")
FileTable = dict[str, dict[str, Any]]  # by name: "bytes" and "blake3"


def check_file_name(name: object, record: str) -> str:
    """Return a name if it leads to a file inside the checkpoint; raise ValueError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{record} names {name!r:.200}, which is outside the checkpoint")
    if any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{record} names {name!r:.200}, which is outside the checkpoint")
    return name


def check_file_names(names: Iterable[object], record: str) -> None:
    """Raise ValueError if one of the names leads outside the checkpoint."""
    for name in names:
        check_file_name(name, record)


def plain_path(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint; raises OSError if a link is on the way."""
    path = folder
    for part in check_file_name(name, folder.name).split("/"):
        path = path / part
        if path.is_symlink():
            said = "a symbolic link in a checkpoint is not followed"
            raise OSError(errno.ELOOP, said, str(path))
    return path


def check_file_table(found: object, record: str) -> FileTable:
    """Return a table of files if every entry has a safe name, a size and a hash; raise ValueError
    otherwise."""
    if not isinstance(found, dict):
        raise ValueError(f"{record} has no table of files")
    check_file_names(found, record)
    for name, entry in found.items():
        if not isinstance(entry, dict) or not is_count(entry.get("bytes")):
            raise ValueError(f"{record} has no size of {name}")
        if not isinstance(entry.get("blake3"), str):
            raise ValueError(f"{record} has no hash of {name}")
    return found
