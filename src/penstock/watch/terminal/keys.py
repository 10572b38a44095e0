"""Single keys from the terminal. Its mode is restored whatever happens.

Only a foreground process with a terminal as its input reads keys. Ctrl-C, Ctrl-Z and Ctrl-\\ keep
their meaning.
"""

import atexit
import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

_SEQUENCE = re.compile(
    rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL
)  # keys that send several bytes


class Keyboard:
    """The keyboard of a terminal, read without waiting for Enter."""

    def __init__(self, file: int | None = None) -> None:
        self.file = _standard_input() if file is None else file
        self._before: list[Any] | None = None

    def start(self) -> bool:
        """Switch the terminal to single keys; return whether keys can be read."""
        if self.file is None or not os.isatty(self.file) or not in_foreground(self.file):
            return False
        try:
            self._before = termios.tcgetattr(self.file)
            tty.setcbreak(self.file, termios.TCSANOW)
        except termios.error:
            self._before = None
            return False
        atexit.register(self.stop)
        return True

    def read(self) -> str:
        """Return the keys pressed since the last call; never waits. A closed terminal has none."""
        pressed = b""
        while self._before is not None and self.file is not None:
            try:
                if not in_foreground(self.file) or not select.select([self.file], [], [], 0)[0]:
                    break
                more = os.read(self.file, 64)
            except (OSError, ValueError):
                more = b""
            if not more:
                self.stop()
                break
            pressed += more
        return _keys(pressed)

    def stop(self) -> None:
        """Restore the mode of the terminal. May be called twice, and from anywhere."""
        before, self._before = self._before, None
        if before is None or self.file is None:
            return
        atexit.unregister(self.stop)
        with _unstopped(), contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self.file, termios.TCSANOW, before)


def in_foreground(file: int) -> bool:
    """Return whether this process is in the foreground of a terminal.

    The system stops a background job that touches the terminal.
    """
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:
        return False


def _standard_input() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return None


def _keys(pressed: bytes) -> str:
    """Return the letters; arrows and other keys that send several bytes are dropped."""
    return _SEQUENCE.sub(b"", pressed).decode("ascii", "ignore")


@contextlib.contextmanager
def _unstopped() -> Iterator[None]:
    """Let a background process restore the terminal without being stopped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
