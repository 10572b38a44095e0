"""A command in a real terminal: a pty of its own, with keys pressed and the screen read back."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.launch.supervisor import preload

LIMIT_S = 120.0
CODES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")
ENTER, LEAVE, SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"  # the screen, and the cursor


class Seat:
    """Whoever sits before the terminal."""

    def __init__(self, arguments: list[str], columns: int, rows: int, env: dict[str, str]) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.before = self.attributes()
        self.text = ""
        self.more = threading.Condition()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""} | env
        command, streams = ["penstock", *arguments], dict.fromkeys(range(3), self.slave)
        if warm := preload.from_environment():
            self.process = warm.start(command, env, streams, terminal=True)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=self.slave,
                stdout=self.slave,
                stderr=self.slave,
                env=env,
                start_new_session=True,
                preexec_fn=_own_terminal,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                got = os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                return
            with self.more:
                self.text += got
                self.more.notify_all()

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def frames(self) -> list[str]:
        """What the screen showed, one after the other, without colours."""
        parts = self.text.partition(ENTER)[2].partition(LEAVE)[0].split("\x1b[H")
        return [CODES.sub("", part).replace("\r", "") for part in parts]

    def after(self) -> str:
        """What stands in the terminal when the screen is gone."""
        return CODES.sub("", self.text.rpartition(LEAVE)[2]).replace("\r", "")

    def until(self, seen: Callable[[], bool], what: str) -> None:
        with self.more:
            assert self.more.wait_for(seen, LIMIT_S), f"{what}:\n{self.frames()[-1]}{self.after()}"

    def shows(self, words: str) -> None:
        """Waits for words on the screen as it is now."""
        self.until(lambda: words in "".join(self.frames()[-2:]), f"never showed {words!r}")

    def end(self) -> int:
        """Its exit code, when everything that it wrote is read."""
        code = self.process.wait(LIMIT_S)
        self.until(lambda: LEAVE in self.text or ENTER not in self.text, "the screen stayed")
        return code


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def seat(
    *arguments: str, columns: int = 80, rows: int = 24, env: dict[str, str] | None = None
) -> Iterator[Seat]:
    made = Seat(list(arguments), columns, rows, env or {})
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        os.close(made.slave)
        os.close(made.master)
