"""Where the processes of ranks come from: one per host, kept for as long as the run runs.

    nursery = Nursery(env)                       returns at once; the imports go on beside
    nursery.ready, nursery.lost                  whether they are done (`start` waits for them)
    nursery.start(rank, env, args, logs) -> pid  `python -m ARGS…` as a rank, by a fork
    nursery.codes() -> {rank: None or exit code} of the newest process of each rank; None: it lives
    nursery.pids() -> {rank: pid}                of those that live
    nursery.stopped() -> {rank, …}               of those, the ones that SIGSTOP holds
    nursery.wait(timeout_s)                      returns early when a rank has ended
    nursery.kill(ranks, number)                  a signal; SIGKILL also ends what a rank has started
    nursery.end(ranks)                           SIGKILL, and returns when they are gone
    nursery.close()                              ends all of them
    nursery.fileno()                             for a `select` with other things: then `codes()`

Ranks may be started and ended one by one, at any time. All of them die with the nursery, and that
dies with this process, however it does. A nursery that is lost is a loss of all its ranks; the next
`start` makes a new one. One thread may use it.
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
from penstock.launch.supervisor.zygote import Forked, Zygote

NURSE, NURSE_FD = "penstock.launch.supervisor.fork_server", 99
RANK = "penstock.train.rank"
# What torch and numpy import only when it is first needed, which in a rank always is.
MODULES = (RANK, "torch._dynamo", "numpy.random")
COMPILER = "torch._inductor.compile_fx"
# The imports of torch take two seconds, or a minute from a cold network disk.
READY_S = 300.0
# A killed process is gone at once, unless the kernel waits for a device or a disk on its behalf.
GONE_S = 60.0
WAKE_S = 1.0  # between two looks whether the nurse is stopped, while something is waited for


def modules(device: str) -> tuple[str, ...]:
    """What ranks on a kind of device need: on "cuda" their layers are compiled."""
    return (*MODULES, COMPILER) if device == "cuda" else MODULES


def process_state(pid: int) -> str:
    """As the kernel has it, "T" for stopped; "" where there is no such process or no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Nursery:
    """`env` is put over this process's own; what a C library reads when it is loaded (OMP_*,
    MALLOC_*) must stand there, since for a forked rank it is too late. `zygote`: the process to
    fork from, where there is one with the modules loaded."""

    def __init__(
        self,
        env: Mapping[str, str],
        modules: Sequence[str] = MODULES,
        zygote: Zygote | None = None,
    ) -> None:
        self._env, self._modules, self._zygote = dict(env), tuple(modules), zygote
        self._codes: dict[int, int | None] = {}
        self._pids: dict[int, int] = {}
        self._open()

    def _open(self) -> None:
        self._line, other = socket.socketpair()
        self._unread, self.ready, self.lost = b"", False, False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the nursery)
        with other:
            self._process = self._fork(other) if self._zygote else self._exec(other)

    def _exec(self, line: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", NURSE, str(line.fileno()), str(os.getpid()), *self._modules],
            env=os.environ | self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[line.fileno()],
            start_new_session=True,  # Ctrl-C is the supervisor's to handle
        )

    def _fork(self, line: socket.socket) -> Forked:
        assert self._zygote is not None
        said = self._said.fileno()
        with open(os.devnull) as nothing:
            return self._zygote.start(
                [NURSE, str(NURSE_FD), str(self._zygote.pid), *self._modules],
                env=os.environ | self._env,
                fds={0: nothing.fileno(), 1: said, 2: said, NURSE_FD: line.fileno()},
            )

    def fileno(self) -> int:
        return self._line.fileno()

    def start(self, rank: int, env: Mapping[str, str], args: Sequence[str], logs: Path) -> int:
        assert self._codes.get(rank, 0) is not None, f"rank {rank} lives"
        with contextlib.suppress(OSError):  # then the rank prints to nowhere
            logs.mkdir(parents=True, exist_ok=True)
        self._hear(0.0)
        if self.lost:
            self.close()
            self._open()
        self._wait_until_ready()
        order = {"start": rank, "env": dict(env), "args": list(args), "logs": str(logs)}
        self._codes[rank] = None
        self._order(order)
        self._wait_for(lambda: rank in self._pids or self._codes[rank] is not None, READY_S)
        return self._pids.get(rank, 0)

    def codes(self) -> dict[int, int | None]:
        self._hear(0.0)
        if any(process_state(pid) in ("Z", "X", "") for pid in self._pids.values()):
            self._wake()  # a rank is dead, and nobody tells
        return dict(self._codes)

    def pids(self) -> dict[int, int]:
        self._hear(0.0)
        return dict(self._pids)

    def stopped(self) -> set[int]:
        """Ranks that live and are stopped, as by SIGSTOP."""
        return {rank for rank, pid in self.pids().items() if process_state(pid) == "T"}

    def wait(self, timeout_s: float) -> None:
        self._hear(timeout_s)

    def kill(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> None:
        self._order({"kill": list(ranks), "signal": int(number)})

    def end(self, ranks: Iterable[int] | None = None) -> None:
        """All of them by default."""
        ranks = list(self._codes) if ranks is None else list(ranks)
        self.kill(ranks)
        gone = self._wait_for(lambda: not any(rank in self._pids for rank in ranks), GONE_S)
        if not gone:
            left = {rank: self._pids[rank] for rank in ranks if rank in self._pids}
            raise RunFailed(
                f"killed processes do not go (rank: process): {left}. The kernel holds them, which "
                "it does for a device or a disk that does not answer; look at both"
            )

    def close(self) -> None:
        """Its end is the end of its ranks; the nurse is killed if it does not see ours."""
        if not self.lost:
            with contextlib.suppress(RunFailed):
                self.end()
        self._line.close()
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._lose()

    def _wait_until_ready(self) -> None:
        if not self._wait_for(lambda: self.ready, READY_S) or self.lost:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
            raise RunFailed(
                "the process that ranks are made from did not come up: "
                f"{said or f'no word within {READY_S:g} s'}"
            )

    def _wait_for(self, done: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not done() and not self.lost:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._wake()
            self._hear(min(left_s, WAKE_S))
        return True

    def _wake(self) -> None:
        """Let the nurse go on if somebody stopped it: without it no rank is started or missed."""
        if process_state(self._process.pid) == "T":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    def _order(self, order: dict[str, object]) -> None:
        try:
            self._line.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._lose()

    def _hear(self, timeout_s: float) -> None:
        """Take in what the nurse has told, waiting for its first word if there is none."""
        while not self.lost and select.select([self._line], [], [], max(0.0, timeout_s))[0]:
            try:
                data = self._line.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return self._lose()
            *told, self._unread = (self._unread + data).split(b"\n")
            for line in told:
                self._take(json.loads(line))
            timeout_s = 0.0
        return None

    def _take(self, told: dict[str, int]) -> None:
        if "ready" in told:
            self.ready = True
        elif "started" in told:
            self._pids[told["started"]] = told["pid"]
        elif self._pids.get(told["ended"]) == told["pid"]:
            self._codes[told["ended"]] = told["code"]
            del self._pids[told["ended"]]

    def _lose(self) -> None:
        """The nurse is gone, and with it every rank that lived."""
        self.lost = True
        self._codes = {r: -signal.SIGKILL if c is None else c for r, c in self._codes.items()}
        self._pids.clear()
