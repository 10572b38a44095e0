"""Errors that are written for the user, and the nearest-name helper they share.

This file stands below every room. A `PenstockError` is a message a person can act on: what is
wrong, where, what was found and how to fix it. The CLI prints it alone, without a traceback.
"""

from collections.abc import Iterable

from penstock.secret import redact
from penstock.suggest import closest


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
    """`Did you mean 'x'?` for the known name that `name` must have meant, or nothing."""
    found = closest(name, known)
    return f"Did you mean '{found}'?" if found else ""
