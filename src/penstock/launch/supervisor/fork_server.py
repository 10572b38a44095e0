"""The fork server: the process that ranks are forked from.

    python -m penstock.launch.supervisor.fork_server FD PARENT MODULE…

It imports what a rank imports and then waits, with one thread and no CUDA context, because neither
survives a fork. So a new rank costs a fork and not seconds of imports. A rank runs as
`python -m MODULE ARGS…` would, in a session of its own. `fork_client.py` starts the server and
defines the messages on FD.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from penstock import output
from penstock.launch.supervisor import fence, forking
from penstock.launch.supervisor.signals import STOP_SIGNALS
from penstock.meter.orphan import die_with
from penstock.secret import RedactedText

PR_SET_NAME = 15
_CHUNK_BYTES = 1 << 16


class ForkServer:
    """The server's loop: answers one line to each order, and one more when a rank has ended."""

    def __init__(self, client: socket.socket) -> None:
        self.client, self.pid = client, os.getpid()
        self.living: dict[int, int] = {}  # pid: rank
        self.unread = b""
        self.fence: fence.Fence | None = None  # of a run on several hosts, from the first rank on
        self.deaths = forking.SigchldPipe()

    def serve(self) -> None:
        """Serve until the client closes the socket."""
        sources: list[Any] = [self.client, self.deaths]
        while True:
            ready, _, _ = select.select(sources, [], [], fence.CHECK_S if self.fence else None)
            if self.fence and self.fence.passed:
                self.send_signal(list(self.living.values()), signal.SIGKILL)
            if self.deaths in ready:
                self.deaths.clear()
                self.reap()
            if self.client in ready:
                data = self.client.recv(_CHUNK_BYTES)
                if not data:
                    return
                *orders, self.unread = (self.unread + data).split(b"\n")
                for order in orders:
                    self.handle(json.loads(order))

    def handle(self, order: dict[str, Any]) -> None:
        """Start a rank, or send a signal to ranks."""
        if "start" in order:
            self.fence = self.fence or fence.from_environment()
            pid = os.fork()
            if pid == 0:
                self.become_rank(order)
            self.living[pid] = order["start"]
            self.send(started=order["start"], pid=pid)
        else:
            self.send_signal(order["kill"], order["signal"])

    def send_signal(self, ranks: list[int], number: int) -> None:
        """Signal ranks that were not reaped: their pids cannot belong to other processes yet."""
        for pid, rank in self.living.items():
            if rank in ranks:
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    self._kill_session(pid)

    def _kill_session(self, pid: int) -> None:
        """Kill a rank and the processes that it has started."""
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it had no session yet, and so no children

    def reap(self) -> None:
        """Report the ranks that have ended."""
        while self.living:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            self._kill_session(pid)  # what it left behind, before the pid can be reused
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.send(ended=self.living.pop(pid), pid=pid, code=code)

    def send(self, **facts: int) -> None:
        self.client.sendall(json.dumps(facts).encode() + b"\n")

    def become_rank(self, order: dict[str, Any]) -> NoReturn:
        """Turn this fresh fork into the rank, run it and exit."""
        code = 1
        try:
            die_with(self.pid)
            os.setsid()
            self.deaths.close()
            self.client.close()
            _set_process_name(f"penstock-r{order['start']}")
            _redirect_output(Path(order["logs"]), order["start"])
            output.guard()
            output.outlive()  # a full disk loses output; it must not end the rank
            os.environ.update(order["env"], PENSTOCK_SUPERVISOR=str(self.pid))
            code = forking.run_module(order["args"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _redirect_output(folder: Path, rank: int) -> None:
    """Append stdout and stderr to `rank-R.out` and `rank-R.err`, with secrets redacted."""
    for number, suffix in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            file = os.open(folder / f"rank-{rank}.{suffix}", flags, 0o644)
        except OSError:  # a full disk, perhaps: the rank is worth more than its output
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = RedactedText(1)
    sys.stderr = RedactedText(2)


def main(client: socket.socket, parent: int, modules: list[str]) -> None:
    die_with(parent)
    # A terminal or a scheduler signals the whole group; the supervisor handles stops.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # imports make much and free little: a collection finds nothing
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized(), "a fork would have no GPU"
    gc.collect()
    gc.freeze()  # a garbage collection in a rank must not copy the pages that it shares
    server = ForkServer(client)
    server.send(ready=os.getpid())
    server.serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
    os._exit(0)  # the ranks that are left die with it
