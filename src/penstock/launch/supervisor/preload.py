"""A preload server: a process with torch loaded, from which other Python processes are forked.

    with preload.serving(env, modules): …                this process and its children find it
    preload.from_environment() -> PreloadClient          None where there is none
    PreloadClient.start(args, env, fds) -> ForkedProcess `python -m ARGS…` by a fork, like a Popen
    preload.python_m(args, env, fds)                     the same; by an exec where there is none

An import of torch takes seconds of a core, and each run imports it twice: in the supervisor and in
the fork server. The tests start hundreds of short runs on one machine, and they share one preload
server.

A forked process has a session of its own. It dies with the process that asked for it (the
connection ends) and with the server. Where its environment sets what a process reads only at its
start, the fork execs a new Python.
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

from penstock.launch.supervisor import forking
from penstock.launch.supervisor.signals import STOP_SIGNALS
from penstock.meter import clock
from penstock.meter.orphan import die_with

ENVIRONMENT = "PENSTOCK_PRELOAD"  # SOCKET PID
# Python, C libraries and the clock read these when they are loaded.
READ_AT_START = (
    "PYTHON", "LD_", "MALLOC_", "OMP_", "MKL_", "ONEDNN_", "ATEN_", clock.ENVIRONMENT
)  # fmt: skip
THREADS = "OMP_NUM_THREADS"  # torch can also set it later
HIGH_FD = 100  # above any that the server has open
_MESSAGE_BYTES = 1 << 20
_FDS = 16


class ForkedProcess:
    """A process that the preload server has forked, with the calls of `subprocess.Popen`."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._pid: int | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        while self._pid is None and self.returncode is None:
            self._receive(None)
        return self._pid or 0

    def poll(self) -> int | None:
        while self.returncode is None and self._receive(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._receive(left_s):
                raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):  # it ended meanwhile
                self._server.send(json.dumps({"signal": int(number)}).encode())

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _receive(self, timeout_s: float | None) -> bool:
        """Handle one message; return whether there was one."""
        if not select.select([self._server], [], [], timeout_s)[0]:
            return False
        try:
            data = self._server.recv(_MESSAGE_BYTES)
        except OSError:
            data = b""
        # The process dies with the server.
        message = json.loads(data) if data else {"code": -signal.SIGKILL}
        self._pid = message.get("pid", self._pid)
        if "code" in message:
            self.returncode = message["code"]
            self._server.close()
        return True


@dataclass(frozen=True)
class PreloadClient:
    """The address of a preload server, to ask for processes."""

    path: str  # of its socket
    pid: int  # the parent of what it forks

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        fds: Mapping[int, int],
        terminal: bool = False,
    ) -> ForkedProcess:
        """Run the module args[0] in this folder, with `fds`: {number there: open file here}.

        With `terminal`, the terminal at its standard input becomes its controlling terminal.
        """
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(self.path)
        order = {"args": list(args), "env": dict(env), "cwd": os.getcwd(), "terminal": terminal}
        order["fds"] = list(fds)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        socket.send_fds(server, [json.dumps(order).encode()], list(fds.values()))
        return ForkedProcess(server)


def from_environment() -> PreloadClient | None:
    """Return the preload server of this process's environment; None where there is none."""
    path, _, pid = os.environ.get(ENVIRONMENT, "").rpartition(" ")
    return PreloadClient(path, int(pid)) if path else None


def python_m(
    args: Sequence[str], env: Mapping[str, str], fds: Mapping[int, int]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start `python -m ARGS…` in a session of its own, with its standard streams at `fds`."""
    if client := from_environment():
        return client.start(args, env, fds)
    return subprocess.Popen(
        [sys.executable, "-m", *args],
        env=env,
        stdin=fds[0],
        stdout=fds[1],
        stderr=fds[2],
        start_new_session=True,
    )


@contextmanager
def serving(env: Mapping[str, str], modules: Sequence[str]) -> Iterator[PreloadClient]:
    """Start a preload server; this process and its children find it until the block ends.

    Returns at once; a client that asks for a process before the imports are done waits for them.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-preload-") as folder:
        path = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(64)
            arguments = [str(listener.fileno()), str(os.getpid()), *modules]
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.launch.supervisor.preload", *arguments],
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        before = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = f"{path} {process.pid}"
        try:
            yield PreloadClient(path, process.pid)
        finally:
            os.environ.pop(ENVIRONMENT)
            if before is not None:
                os.environ[ENVIRONMENT] = before
            process.kill()
            process.wait()


# The server process


class PreloadServer:
    """The server's loop: forks once for each connection and reports over it how that ended."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.pid = listener, os.getpid()
        self.connections: dict[socket.socket, int] = {}  # pids; 0 before the order
        self.deaths = forking.SigchldPipe()

    def serve(self) -> dict[str, Any]:
        """Serve for ever; in each forked process, return the order that it is to run."""
        while True:
            sources: list[Any] = [self.listener, self.deaths, *self.connections]
            ready, _, _ = select.select(sources, [], [])
            if self.deaths in ready:
                self.deaths.clear()
                self._reap()
            if self.listener in ready:
                self.connections[self.listener.accept()[0]] = 0
            for client in [one for one in ready if one in self.connections]:
                if order := self._handle(client):
                    return order

    def _handle(self, client: socket.socket) -> dict[str, Any] | None:
        """Handle one message of a client; return the order in the process forked for it."""
        try:
            data, fds, _, _ = socket.recv_fds(client, _MESSAGE_BYTES, _FDS)
        except OSError:
            data, fds = b"", []
        if not data:
            self._send_signal(client, signal.SIGKILL)
            self._forget(client)
            return None
        order = json.loads(data)
        if "signal" in order:
            self._send_signal(client, order["signal"])
            return None
        pid = os.fork()
        if pid == 0:
            for one in [*self.connections, self.listener]:
                one.close()
            self.deaths.close()
            return order | {"fds": dict(zip(order["fds"], fds, strict=True)), "server": self.pid}
        for fd in fds:
            os.close(fd)
        self.connections[client] = pid
        self._send(client, pid=pid)
        return None

    def _send_signal(self, client: socket.socket, number: int) -> None:
        """Signal a process that was not reaped: its pid cannot belong to another one yet."""
        if pid := self.connections[client]:
            os.kill(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for client in [one for one, its in self.connections.items() if its == pid]:
                self._send(client, code=os.waitstatus_to_exitcode(status))
                self._forget(client)

    def _send(self, client: socket.socket, **facts: int) -> None:
        with contextlib.suppress(OSError):  # the client is gone; the next read finds that out
            client.send(json.dumps(facts).encode())

    def _forget(self, client: socket.socket) -> None:
        del self.connections[client]
        client.close()


def become(order: dict[str, Any]) -> int:
    """Turn a fresh fork into the process that was asked for; run it and return its exit code."""
    die_with(order["server"])
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
    early = {name: env[name] for name in env if name.startswith(READ_AT_START) and name != THREADS}
    if any(started.get(name) != value for name, value in early.items()):
        os.execve(sys.executable, [sys.executable, "-m", *args], env)
    os.environ.clear()
    os.environ.update(env)
    if env.get(THREADS, started.get(THREADS)) != started.get(THREADS):
        sys.modules["torch"].set_num_threads(int(env[THREADS]))
    forking.renew_streams()
    return forking.run_module(args)


def main(listener: socket.socket, parent: int, modules: list[str]) -> int:
    die_with(parent)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a terminal signals the whole group
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    return become(PreloadServer(listener).serve())


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]))
