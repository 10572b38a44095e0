"""Folders of this user in places where everyone can write. Below every room, like `errors`.

Anyone on a shared machine can make a folder in /dev/shm or /tmp first, under a name that they can
guess, and put links into it. Files written there would follow the links. So a folder in such a
place is used only if it belongs to this user. Nobody can give a folder away, and the sticky bit
keeps others from renaming or replacing it.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

PRIVATE_FOLDER = 0o700
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can enter, or check that it is one; return its path.

    Missing parents are created in the same way. Raises PermissionError where something of somebody
    else is in the way.
    """
    if not path.parent.exists():
        private_folder(path.parent)
    refuse_strangers(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER)
    try:
        handle = os.open(path, _OPEN)
    except OSError as error:
        if is_ours(path):
            raise
        raise _not_ours(path) from error
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            raise _not_ours(path)
        if found.st_mode & 0o077:  # made by an older version
            os.fchmod(handle, PRIVATE_FOLDER)
    finally:
        os.close(handle)
    return path


def is_ours(path: Path) -> bool:
    """Return whether this is a folder, and no link, that only this user can write to."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    ours = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
    return ours and stat.S_ISDIR(found.st_mode)


def refuse_strangers(path: Path) -> Path:
    """Raise PermissionError if somebody else could have made a part of this path; return it.

    That is a part that lies in a folder where everyone can write, and belongs neither to this
    user nor to root. Parts that do not exist yet are no danger.
    """
    for whole in {Path(os.path.abspath(path)), Path(os.path.realpath(path))}:
        for part in [whole, *whole.parents][:-1]:
            try:
                above, found = os.stat(part.parent), os.lstat(part)
            except OSError:
                continue  # it does not exist, or cannot be reached
            if not above.st_mode & stat.S_IWOTH:
                continue
            if found.st_uid not in (0, os.geteuid()) or not above.st_mode & stat.S_ISVTX:
                raise _not_ours(part)
    return path


def folder_among_strangers(shared: Path, name: str, lock: Path) -> Path | None:
    """Return where this user's folder is in a place where everyone can write; it may not exist yet.

    It is `name`. Where somebody else took that, it is `name-RANDOM`, which nobody can guess before
    it exists, and which is found again because it is ours. Processes that need such a name at the
    same time agree on one by the lock file. None where nothing can be kept safely.
    """
    if not _can_hold_private(shared):
        return None
    if found := _found(shared, name):
        return found
    with _locked(lock):
        if found := _found(shared, name):
            return found
        return private_folder(shared / f"{name}-{secrets.token_hex(8)}")


def _found(shared: Path, name: str) -> Path | None:
    """Return our folder, or the name that is free for it; None where somebody else has the name.

    The other name goes first: a run that began there must find it for as long as it exists, also
    when the first name becomes ours meanwhile.
    """
    others = sorted(path for path in shared.glob(f"{name}-*") if is_ours(path))
    if others:
        return others[0]
    first = shared / name
    return first if is_ours(first) or not os.path.lexists(first) else None


def _can_hold_private(shared: Path) -> bool:
    """Return whether we can write there, and nobody else can replace what we made."""
    try:
        mode = os.stat(shared).st_mode
    except OSError:
        return False
    sticky = not mode & _OTHERS_WRITE or bool(mode & stat.S_ISVTX)
    return sticky and os.access(shared, os.W_OK)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold the lock file; continue without it on a file system without locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _not_ours(path: Path) -> PermissionError:
    try:
        found = os.lstat(path)
    except OSError:
        why = "this folder was replaced while it was opened"
    else:
        kind = "link" if stat.S_ISLNK(found.st_mode) else "file"
        kind = "folder" if stat.S_ISDIR(found.st_mode) else kind
        if found.st_uid != os.geteuid():
            why = f"this {kind} belongs to somebody else (user {found.st_uid})"
        elif kind == "folder":
            why = "others can write to this folder or replace it"
        else:
            why = f"this {kind} is in the way of a folder"
    return PermissionError(errno.EACCES, why, str(path))
