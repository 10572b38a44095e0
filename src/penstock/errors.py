"""Errors written for the user, and the nearest-name helper they share.

This file is below every room. A `PenstockError` is a message that a person can act on: what is
wrong, where, what was found and how to fix it. The CLI prints it alone, without a traceback.
"""

import errno
import os
from collections.abc import Iterable

from penstock.secret import redact
from penstock.suggest import closest

_HINTS = {
    errno.EACCES: "check its owner and mode with `ls -ld`",
    errno.EPERM: "check its owner and mode with `ls -ld`",
    errno.EROFS: "name a place that can be written",
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
    errno.EIO: "its disk or network file system fails; look at `dmesg`",
    errno.ESTALE: "mount the network file system again",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "a part of this path is a file",
    errno.EISDIR: "this is a folder; name a file",
    errno.ELOOP: "its symbolic links lead back to it",
    errno.ENOENT: "check the path",
    errno.EMFILE: "raise the limit with `ulimit -n`",
}


class PenstockError(Exception):
    """Bad input: the CLI prints the message and exits with 2."""

    exit_code = 2

    def __str__(self) -> str:
        """Return the message without secrets: it is printed, journaled and sent."""
        return redact(super().__str__())


class NotYet(PenstockError):
    """A field or verb of the design that this version does not have."""


class NotReached(PenstockError):
    """Something on the network that does not answer, or not with the credentials of this user."""


class OwnCodeError(PenstockError):
    """An exception that the user's own code raised, in words."""


class RunFailed(PenstockError):
    """The input was right but the run or check failed: exit code 1."""

    exit_code = 1


INTERRUPTED = "interrupted. What was done is kept; the same command goes on."


def system_words(error: OSError) -> str:
    """Return the path and the system's message: `runs/x: Permission denied`."""
    if error.errno is None:  # not from the system: raised with words of its own
        return str(error) or type(error).__name__
    said = error.strerror or os.strerror(error.errno)
    paths = [os.fsdecode(p) for p in (error.filename, error.filename2) if _is_path(p)]
    return f"{' -> '.join(paths)}: {said}" if paths else said


def system_error(error: OSError) -> str:
    """Return the same as a whole message, with what a person can do about it."""
    hint = _HINTS.get(error.errno or 0)
    return f"{system_words(error)}; {hint}" if hint else system_words(error)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))  # descriptors say nothing to a person


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the known name that `name` must have meant, or nothing."""
    found = closest(name, known)
    return f"Did you mean '{found}'?" if found else ""
