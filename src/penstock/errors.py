"""Errors that are written for the user, and the nearest-name helper they share.

This file stands below every room. A `PenstockError` is a message a person can act on: what is
wrong, where, what was found and how to fix it. The CLI prints it alone, without a traceback.
"""

import difflib
from collections.abc import Iterable

from penstock.secret import redact


class PenstockError(Exception):
    """Bad input: the CLI prints the message and exits with 2."""

    exit_code = 2

    def __str__(self) -> str:
        """Return the message without secrets: it is printed, journaled and sent."""
        return redact(super().__str__())


class NotYet(PenstockError):
    """A field or verb that the design has and this version does not."""


class RunFailed(PenstockError):
    """The input was right but the run or check failed: exit code 1."""

    exit_code = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` for the known name closest to `name`, or nothing when none is close."""
    names = list(known)
    folded = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"Did you mean '{folded[close[0]]}'?" if close else ""
