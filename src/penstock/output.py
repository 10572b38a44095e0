"""Standard output and standard error that may break. Below every room, like `errors`.

    output.guard()      # once, when the process starts
    output.outlive()    # this command's work matters more than its display

A reader that went away, a full device, a terminal that is gone or an encoding without the right
letters is no reason to lose a run. `guard` replaces the two streams. Text that the encoding cannot
express is written with `?`. A stream that fails is tried no more: everything later goes nowhere,
also what libraries and the interpreter's own exit still write there. The first failure raises
`OutputFailed`, unless `outlive` was called: then it is only kept, for whoever asks `problem`.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

BROKEN_PIPE = 128 + 13  # exit code of a program that SIGPIPE ends, as shells report it
_guarded: list["Output"] = []  # not found by `sys.stdout`, which a live screen replaces


class OutputFailed(Exception):
    """A stream that cannot be written. Not an OSError: rich and click end the process on those."""

    def __init__(self, error: Exception) -> None:
        super().__init__(words(error))
        number = getattr(error, "errno", None)
        self.exit_code = BROKEN_PIPE if number == errno.EPIPE else 1
        self.silent = number == errno.EPIPE  # whoever closed a pipe knows


class Output:
    """A text stream in the place of `sys.stdout` or `sys.stderr`."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name
        self.failure: Exception | None = None
        self.outlived = False

    def write(self, text: str) -> int:
        """Write, or do nothing when the stream has failed before."""
        if self.failure is None:
            try:
                self._write(text)
            except (OSError, ValueError) as error:  # ValueError: the stream was closed
                self._fail(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.failure is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    @property
    def problem(self) -> str:
        """The reason why nothing is written any more; "" while it is."""
        return f"{self._name}: {words(self.failure)}" if self.failure else ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def _fail(self, error: Exception) -> None:
        self.failure = error
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)  # for what is in buffers, and for libraries
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if not self.outlived:
            raise OutputFailed(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # isatty, fileno, encoding, buffer …


def guard() -> None:
    """Replace both standard streams by an `Output`."""
    for name, words in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this process
            stream = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        if not isinstance(stream, Output):
            _guarded.append(Output(stream, words))
            setattr(sys, name, _guarded[-1])


def outlive() -> None:
    """Continue whatever happens to the streams."""
    for stream in _guarded:
        stream.outlived = True


def problem() -> str:
    """Say which stream has failed and why; "" when none has."""
    return "; ".join(stream.problem for stream in _guarded if stream.failure)


def flush() -> None:
    """Write what is left in buffers: a failure at the interpreter's exit would go unnoticed."""
    for stream in _guarded:
        stream.flush()


def words(error: Exception) -> str:
    """Return what the system said."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
