"""`penstock` commands in processes of their own, forked from one that has torch loaded.

    commands.popen("train", path, …) -> Command     to be used like a Popen with pipes of text
    commands.run("ls", …, code=0) -> Done           its exit code must be `code`

Without a warm process (the fixtures `warm` and `cold`) they start as a user starts them.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

from penstock.launch.supervisor import preload

LIMIT_S = 120.0


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Command:
    """A command that runs."""

    def __init__(self, words: tuple[str, ...], env: Mapping[str, str], one_pipe: bool) -> None:
        out = os.pipe()
        err = out if one_pipe else os.pipe()
        with open(os.devnull) as nothing:
            fds = {0: nothing.fileno(), 1: out[1], 2: err[1]}
            self.process = preload.python_m(["penstock", *words], env, fds)
        for its in {out[1], err[1]}:
            os.close(its)
        self.stdout: IO[str] = os.fdopen(out[0], encoding="utf-8")
        self.stderr: IO[str] | None = None if one_pipe else os.fdopen(err[0], encoding="utf-8")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def poll(self) -> int | None:
        return self.process.poll()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float = LIMIT_S) -> int:
        return self.process.wait(timeout)

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """What is left of both outputs, when they are closed and it has ended."""
        texts = {"stdout": "", "stderr": ""}

        def read(name: str, pipe: IO[str]) -> None:
            with pipe:
                texts[name] = pipe.read()

        pipes = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [
            threading.Thread(target=read, args=(name, pipe), daemon=True)
            for name, pipe in pipes.items()
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts["stdout"], texts["stderr"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.wait()


def popen(*words: object, one_pipe: bool = False, **env: str) -> Command:
    """`one_pipe`: errors go where the output goes."""
    return Command(tuple(map(str, words)), os.environ | env, one_pipe)


def run(*words: object, code: int = 0, **env: str) -> Done:
    process = popen(*words, **env)
    out, told = process.communicate()
    assert process.returncode == code, told
    assert "Traceback" not in told
    return Done(process.returncode or 0, out, told)
