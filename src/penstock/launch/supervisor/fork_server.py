"""The process that ranks are forked from.

    python -m penstock.launch.supervisor.fork_server FD PARENT MODULE…

It imports what a rank imports and then waits, with one thread and no CUDA context: the two things
that do not survive a fork. So a new rank costs a fork, and not seconds of imports. A rank runs as
`python -m MODULE ARGS…` would, in a session of its own. Started by `nursery.py`, which says what
the messages on FD are.
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
from penstock.launch.supervisor import fence, forked
from penstock.meter.orphan import die_with
from penstock.secret import RedactedText

PR_SET_NAME = 15
_CHUNK_BYTES = 1 << 16


class Nurse:
    """Answers one line to each order, and one more when a rank has ended."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.pid = line, os.getpid()
        self.living: dict[int, int] = {}  # pid: rank
        self.unread = b""
        self.fence = fence.from_environment()  # of a run on several hosts
        self.look_s = fence.LOOK_S if self.fence else None
        self.wakeup = forked.Wakeup()

    def serve(self) -> None:
        """Until the other side hangs up."""
        waits: list[Any] = [self.line, self.wakeup]
        while True:
            ready, _, _ = select.select(waits, [], [], self.look_s)
            if self.fence and self.fence.passed:
                self.kill(list(self.living.values()), signal.SIGKILL)
            if self.wakeup in ready:
                self.wakeup.clear()
                self.reap()
            if self.line in ready:
                data = self.line.recv(_CHUNK_BYTES)
                if not data:
                    return
                *orders, self.unread = (self.unread + data).split(b"\n")
                for order in orders:
                    self.obey(json.loads(order))

    def obey(self, order: dict[str, Any]) -> None:
        if "start" in order:
            pid = os.fork()
            if pid == 0:
                self.become(order)
            self.living[pid] = order["start"]
            self.tell(started=order["start"], pid=pid)
        else:
            self.kill(order["kill"], order["signal"])

    def kill(self, ranks: list[int], number: int) -> None:
        """Only what was not reaped: its number cannot have gone to another process."""
        for pid, rank in self.living.items():
            if rank in ranks:
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    self._kill_with_children(pid)

    def _kill_with_children(self, pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it had no session yet, and so no children

    def reap(self) -> None:
        while self.living:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            self._kill_with_children(pid)  # what it left behind; while the number is still its own
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.tell(ended=self.living.pop(pid), pid=pid, code=code)

    def tell(self, **facts: int) -> None:
        self.line.sendall(json.dumps(facts).encode() + b"\n")

    def become(self, order: dict[str, Any]) -> NoReturn:
        """The new process turns into the rank."""
        code = 1
        try:
            die_with(self.pid)
            os.setsid()
            self.wakeup.close()
            self.line.close()
            _name(f"penstock-r{order['start']}")
            _log_to(Path(order["logs"]), order["start"])
            output.guard()
            output.outlive()  # a full disk takes no words, and ends no rank
            os.environ.update(order["env"], PENSTOCK_SUPERVISOR=str(self.pid))
            code = forked.run_module(order["args"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _name(name: str) -> None:
    """What `ps` and `top` call this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _log_to(folder: Path, rank: int) -> None:
    """`rank-0.out` and `rank-0.err`; a rank started again in the same attempt writes on.

    What Python prints is redacted.
    """
    for number, ending in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            file = os.open(folder / f"rank-{rank}.{ending}", flags, 0o644)
        except OSError:  # a full disk, perhaps: what a rank prints is worth less than the rank
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = RedactedText(1)
    sys.stderr = RedactedText(2)


def main(line: socket.socket, parent: int, modules: list[str]) -> None:
    die_with(parent)
    # Stops are the supervisor's to handle; a terminal or a scheduler signals the whole group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for module in modules:
        importlib.import_module(module)
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized(), "a fork would have no GPU"
    gc.collect()
    gc.freeze()  # a collection in a rank must not copy the pages that it shares
    nurse = Nurse(line)
    nurse.tell(ready=os.getpid())
    nurse.serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
    os._exit(0)  # the ranks that are left go with it
