"""A process with torch loaded, from which other Python processes are forked.

    with zygote.serving(env, modules): …     found by this process and those that it starts
    zygote.from_environment() -> Zygote      None where there is none
    Zygote.start(args, env, fds) -> Forked   `python -m ARGS…`, by a fork; to be used like a Popen
    zygote.python_m(args, env, fds)          the same; without a zygote, by an exec

An import of torch takes seconds of a core, and a run takes two: one in the supervisor and one in
the process that ranks are forked from. Many short runs on one machine share them here.

A forked process has a session of its own. It dies with whoever asked for it (the connection ends)
and with the zygote. Where its environment asks for what a process reads only when it starts, the
fork execs a new Python.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.launch.supervisor import forked
from penstock.meter import clock
from penstock.meter.orphan import die_with

ENVIRONMENT = "PENSTOCK_ZYGOTE"  # SOCKET PID
# Read by Python, by C libraries and by the clock when they are loaded.
READ_AT_START = (
    "PYTHON", "LD_", "MALLOC_", "OMP_", "MKL_", "ONEDNN_", "ATEN_", clock.ENVIRONMENT
)  # fmt: skip
THREADS = "OMP_NUM_THREADS"  # can be set later, too
HIGH_FD = 100  # above any that the zygote has open
_MESSAGE_BYTES = 1 << 20
_FDS = 16


class Forked:
    """A process that the zygote has forked, as `subprocess.Popen` has one of its own."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid: int | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        while self._pid is None and self.returncode is None:
            self._hear(None)
        return self._pid or 0

    def poll(self) -> int | None:
        while self.returncode is None and self._hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._hear(left_s):
                raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):  # it ended meanwhile
                self._line.send(json.dumps({"signal": int(number)}).encode())

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout_s: float | None) -> bool:
        """Take in one message; whether there was one."""
        if not select.select([self._line], [], [], timeout_s)[0]:
            return False
        try:
            data = self._line.recv(_MESSAGE_BYTES)
        except OSError:
            data = b""
        told = json.loads(data) if data else {"code": -signal.SIGKILL}  # it dies with the zygote
        self._pid = told.get("pid", self._pid)
        if "code" in told:
            self.returncode = told["code"]
            self._line.close()
        return True


@dataclass(frozen=True)
class Zygote:
    """Whom to ask for a process."""

    path: str  # of its socket
    pid: int  # the parent of what it forks

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        fds: Mapping[int, int],
        terminal: bool = False,
    ) -> Forked:
        """Run the module args[0] with `fds` ({its number there: open here}) in this folder.

        `terminal`: the terminal at its standard input is the one that controls it.
        """
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(self.path)
        order = {"args": list(args), "env": dict(env), "cwd": os.getcwd(), "terminal": terminal}
        order["fds"] = list(fds)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        socket.send_fds(line, [json.dumps(order).encode()], list(fds.values()))
        return Forked(line)


def from_environment() -> Zygote | None:
    path, _, pid = os.environ.get(ENVIRONMENT, "").rpartition(" ")
    return Zygote(path, int(pid)) if path else None


def python_m(
    args: Sequence[str], env: Mapping[str, str], fds: Mapping[int, int]
) -> Forked | subprocess.Popen[bytes]:
    """Start `python -m ARGS…` in a session of its own, with its standard streams at `fds`."""
    if found := from_environment():
        return found.start(args, env, fds)
    return subprocess.Popen(
        [sys.executable, "-m", *args],
        env=env,
        stdin=fds[0],
        stdout=fds[1],
        stderr=fds[2],
        start_new_session=True,
    )


@contextmanager
def serving(env: Mapping[str, str], modules: Sequence[str]) -> Iterator[Zygote]:
    """Start a zygote; everything below this process finds it until the end of the block.

    Returns at once; whoever asks for a process before the imports are done waits for them.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-zygote-") as folder:
        path = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(64)
            own = [str(listener.fileno()), str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.launch.supervisor.zygote", *own, *modules],
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        before = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = f"{path} {process.pid}"
        try:
            yield Zygote(path, process.pid)
        finally:
            os.environ.pop(ENVIRONMENT)
            if before is not None:
                os.environ[ENVIRONMENT] = before
            process.kill()
            process.wait()


# The zygote itself


class Server:
    """Forks once for each connection and tells over it how the process ended."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.pid = listener, os.getpid()
        self.lines: dict[socket.socket, int] = {}  # connection: pid, 0 before the order
        self.wakeup = forked.Wakeup()

    def serve(self) -> dict[str, Any]:
        """Never returns here; in each forked process it returns what to run."""
        while True:
            ready, _, _ = select.select(self._waits(), [], [])
            if self.wakeup in ready:
                self.wakeup.clear()
                self._reap()
            if self.listener in ready:
                self.lines[self.listener.accept()[0]] = 0
            for line in [line for line in ready if line in self.lines]:
                if order := self._hear(line):
                    return order

    def _waits(self) -> list[Any]:
        return [self.listener, self.wakeup, *self.lines]

    def _hear(self, line: socket.socket) -> dict[str, Any] | None:
        try:
            data, fds, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, _FDS)
        except OSError:
            data, fds = b"", []
        if not data:
            self._signal(line, signal.SIGKILL)
            self._forget(line)
            return None
        order = json.loads(data)
        if "signal" in order:
            self._signal(line, order["signal"])
            return None
        pid = os.fork()
        if pid == 0:
            for number in [*self.lines, self.listener]:
                number.close()
            self.wakeup.close()
            return order | {"fds": dict(zip(order["fds"], fds, strict=True)), "zygote": self.pid}
        for fd in fds:
            os.close(fd)
        self.lines[line] = pid
        self._tell(line, pid=pid)
        return None

    def _signal(self, line: socket.socket, number: int) -> None:
        """Only what was not reaped: its number cannot have gone to another process."""
        if pid := self.lines[line]:
            os.kill(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for line in [line for line, its in self.lines.items() if its == pid]:
                self._tell(line, code=os.waitstatus_to_exitcode(status))
                self._forget(line)

    def _tell(self, line: socket.socket, **facts: int) -> None:
        with contextlib.suppress(OSError):  # the other side is gone, which the next read tells
            line.send(json.dumps(facts).encode())

    def _forget(self, line: socket.socket) -> None:
        del self.lines[line]
        line.close()


def become(order: dict[str, Any]) -> int:
    """Turn a fresh fork into the process that was asked for, and run it; its exit code."""
    die_with(order["zygote"])
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = {to: fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for to, fd in order["fds"].items()}
    for to, fd in high.items():
        os.dup2(fd, to, inheritable=True)
    for fd in {*high.values(), *order["fds"].values()} - set(high):
        os.close(fd)
    if order["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["cwd"])
    started, env, args = dict(os.environ), order["env"], order["args"]
    asked = {name: env[name] for name in env if name.startswith(READ_AT_START) and name != THREADS}
    if any(started.get(name) != value for name, value in asked.items()):
        os.execve(sys.executable, [sys.executable, "-m", *args], env)
    os.environ.clear()
    os.environ.update(env)
    if env.get(THREADS, started.get(THREADS)) != started.get(THREADS):
        sys.modules["torch"].set_num_threads(int(env[THREADS]))
    forked.renew_streams()
    return forked.run_module(args)


def main(listener: socket.socket, parent: int, modules: list[str]) -> int:
    die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal signals the whole group
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    return become(Server(listener).serve())


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]))
