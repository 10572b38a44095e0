"""The client of the fork server: starts, watches and ends the processes of ranks on this host.

    client = ForkClient(env)                      returns at once; the server imports meanwhile
    client.ready, client.lost                     whether the imports are done (`start` waits)
    client.start(rank, env, args, logs) -> pid    `python -m ARGS…` as a rank, by a fork
    client.exit_codes() -> {rank: code or None}   of the newest process of each rank; None: it lives
    client.pids() -> {rank: pid}                  of the ranks that live
    client.stopped_ranks() -> {rank, …}           those among them that SIGSTOP holds
    client.wait(timeout_s)                        returns early when a rank has ended
    client.send_signal(ranks, number)             SIGKILL also ends what a rank has started
    client.end_ranks(ranks)                       SIGKILL, and returns when they are gone
    client.close()                                ends all of them, and the server
    client.fileno()                               for a `select` with other files

All ranks die with the server, and the server dies with this process, however it dies. A lost server
is a loss of all its ranks; the next `start` makes a new one. Use it from one thread only.
docs/design/launch.md says why this is not `multiprocessing`'s forkserver.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from penstock.errors import RunFailed
from penstock.launch.supervisor.preload import ForkedProcess, PreloadClient

SERVER, SERVER_FD = "penstock.launch.supervisor.fork_server", 99
RANK = "penstock.train.rank"
# torch and numpy import these only on first use, and every rank uses them.
MODULES = (RANK, "torch._dynamo", "numpy.random")
COMPILER = "torch._inductor.compile_fx"
# The imports of torch take two seconds, or a minute from a cold network disk.
READY_S = 300.0
# A killed process is gone at once, unless the kernel waits for a device or a disk on its behalf.
GONE_S = 60.0
WAKE_S = 1.0  # between two checks whether the server is stopped, while something is waited for


def modules(device: str, compiled: str = "auto") -> tuple[str, ...]:
    """Return the modules that ranks on a kind of device need; `compiled` is `train.compile`.

    "auto" compiles layers on "cuda", in all but a few layouts.
    """
    compiles = device == "cuda" if compiled == "auto" else compiled == "on"
    return (*MODULES, COMPILER) if compiles else MODULES


def process_state(pid: int) -> str:
    """Return the kernel's letter for a process, "T" for stopped; "" where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class ForkClient:
    """Ranks on this host, forked from one server process. See the module for its calls.

    `env` is put over this process's own environment. It must hold what a C library reads when it is
    loaded (OMP_*, MALLOC_*): in a forked rank it is too late to set that. `preload` is the process
    to fork the server from, where one has the modules loaded.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        modules: Sequence[str] = MODULES,
        preload: PreloadClient | None = None,
    ) -> None:
        self._env, self._modules, self._preload = dict(env), tuple(modules), preload
        self._exit_codes: dict[int, int | None] = {}
        self._pids: dict[int, int] = {}
        self._start_server()

    def _start_server(self) -> None:
        self._socket, other = socket.socketpair()
        self._unread, self.ready, self.lost = b"", False, False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        with other:
            self._process = self._fork(other) if self._preload else self._exec(other)

    def _exec(self, server_end: socket.socket) -> subprocess.Popen[bytes]:
        arguments = [str(server_end.fileno()), str(os.getpid()), *self._modules]
        return subprocess.Popen(
            [sys.executable, "-m", SERVER, *arguments],
            env=os.environ | self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[server_end.fileno()],
            start_new_session=True,  # the supervisor handles Ctrl-C
        )

    def _fork(self, server_end: socket.socket) -> ForkedProcess:
        assert self._preload is not None
        output = self._output.fileno()
        with open(os.devnull) as nothing:
            return self._preload.start(
                [SERVER, str(SERVER_FD), str(self._preload.pid), *self._modules],
                env=os.environ | self._env,
                fds={0: nothing.fileno(), 1: output, 2: output, SERVER_FD: server_end.fileno()},
            )

    def serves(self, env: Mapping[str, str], modules: Sequence[str]) -> bool:
        """Return whether ranks that need this environment and these modules can come from it."""
        return not self.lost and self._env == env and set(modules) <= set(self._modules)

    def fileno(self) -> int:
        return self._socket.fileno()

    def start(self, rank: int, env: Mapping[str, str], args: Sequence[str], logs: Path) -> int:
        assert self._exit_codes.get(rank, 0) is not None, f"rank {rank} lives"
        with contextlib.suppress(OSError):  # then the output of the rank is lost
            logs.mkdir(parents=True, exist_ok=True)
        self._receive(0.0)
        if self.lost:
            self.close()
            self._start_server()
        self._wait_until_ready()
        order = {"start": rank, "env": dict(env), "args": list(args), "logs": str(logs)}
        self._exit_codes[rank] = None
        self._send(order)
        self._wait_for(lambda: rank in self._pids or self._exit_codes[rank] is not None, READY_S)
        return self._pids.get(rank, 0)

    def exit_codes(self) -> dict[int, int | None]:
        self._receive(0.0)
        if any(process_state(pid) in ("Z", "X", "") for pid in self._pids.values()):
            self._wake_server()  # a rank is dead and the server has not said so
        return dict(self._exit_codes)

    def pids(self) -> dict[int, int]:
        self._receive(0.0)
        return dict(self._pids)

    def stopped_ranks(self) -> set[int]:
        return {rank for rank, pid in self.pids().items() if process_state(pid) == "T"}

    def wait(self, timeout_s: float) -> None:
        self._receive(timeout_s)

    def send_signal(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> None:
        self._send({"kill": list(ranks), "signal": int(number)})

    def end_ranks(self, ranks: Iterable[int] | None = None) -> None:
        ranks = list(self._exit_codes) if ranks is None else list(ranks)
        self.send_signal(ranks)
        gone = self._wait_for(lambda: not any(rank in self._pids for rank in ranks), GONE_S)
        if not gone:
            left = {rank: self._pids[rank] for rank in ranks if rank in self._pids}
            raise RunFailed(
                f"killed processes do not go away (rank: process): {left}. The kernel holds them, "
                "which it does for a device or a disk that does not answer; look at both"
            )

    def close(self) -> None:
        """End the ranks and the server; kill the server if it does not see the socket close."""
        if not self.lost:
            with contextlib.suppress(RunFailed):
                self.end_ranks()
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._mark_lost()

    def _wait_until_ready(self) -> None:
        if not self._wait_for(lambda: self.ready, READY_S) or self.lost:
            self._output.seek(0)
            printed = self._output.read().decode(errors="replace").strip()
            raise RunFailed(
                "the process that ranks are forked from did not come up: "
                f"{printed or f'no word within {READY_S:g} s'}"
            )

    def _wait_for(self, done: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not done() and not self.lost:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._wake_server()
            self._receive(min(left_s, WAKE_S))
        return True

    def _wake_server(self) -> None:
        """Continue the server if somebody stopped it: otherwise nobody starts or reaps ranks."""
        if process_state(self._process.pid) == "T":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    def _send(self, order: dict[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._mark_lost()

    def _receive(self, timeout_s: float) -> None:
        """Handle what the server has sent; wait up to `timeout_s` for its first message."""
        while not self.lost and select.select([self._socket], [], [], max(0.0, timeout_s))[0]:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return self._mark_lost()
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
            timeout_s = 0.0
        return None

    def _handle(self, message: dict[str, int]) -> None:
        if "ready" in message:
            self.ready = True
        elif "started" in message:
            self._pids[message["started"]] = message["pid"]
        elif self._pids.get(message["ended"]) == message["pid"]:
            self._exit_codes[message["ended"]] = message["code"]
            del self._pids[message["ended"]]

    def _mark_lost(self) -> None:
        """Record that the server is gone, and every rank that lived with it."""
        self.lost = True
        self._exit_codes = {
            rank: -signal.SIGKILL if code is None else code
            for rank, code in self._exit_codes.items()
        }
        self._pids.clear()
