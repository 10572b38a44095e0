"""Processes that take orders as JSON lines and answer each with one.

The doctor talks to an agent on every node this way, over ssh or `srun`, and an agent to its ranks.
A connection that broadcasts its input, as that of `srun` does, reaches several nodes; so an order
names those that it is for, and an answer the node that gives it.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import PenstockError, system_error

Order = dict[str, Any]
Answer = dict[str, Any]
Handler = Callable[[Order], Answer]
ERROR = "error"  # in place of an answer
HELLO = "hello"
_LOOK_S = 0.1  # between looks at whether a process has ended
_KEPT_LINES = 40  # of what a process wrote to its standard error


class LineProcess:
    """A process that answers orders; it may stand for several nodes."""

    def __init__(
        self,
        command: Sequence[str],
        answers: "queue.Queue[Answer]",
        name: str,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for the caller, who then ends this one
        )
        self._answers = answers
        self.ended = False  # and every answer of it has been read
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, order: Order) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which its reader tells
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def why(self) -> str:
        """Return how it ended, and the last that it wrote to its standard error."""
        self._readers[1].join(timeout=2.0)
        code = self._process.poll()
        return self._errors[-1] if self._errors else f"ended with exit code {code}"

    @property
    def errors(self) -> str:
        return "\n".join(self._errors)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def close(self, wait_s: float = 5.0) -> None:
        """Close its input, which ends it; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, TypeError):  # something else that was printed
                found = json.loads(line)
                if isinstance(found, dict) and "node" in found:
                    self._answers.put(found)
        self._process.wait()
        self.ended = True

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text := line.decode(errors="replace").strip():
                self._errors = [*self._errors, text][-_KEPT_LINES:]


def collect(
    answers: "queue.Queue[Answer]",
    number: object,
    nodes: Iterable[str],
    timeout_s: float,
    process_of: Callable[[str], LineProcess],
) -> dict[str, Answer]:
    """Collect the answers to one order; each node has one, if only the reason why it has none."""
    waiting = dict.fromkeys(nodes)
    found: dict[str, Answer] = {}
    until = time.monotonic() + timeout_s
    while waiting and time.monotonic() < until:
        gone = [node for node in waiting if process_of(node).ended]  # before the queue is read
        try:
            answer = answers.get(timeout=min(_LOOK_S, max(0.0, until - time.monotonic())))
        except queue.Empty:
            for node in gone:
                del waiting[node]
                found[node] = {ERROR: process_of(node).why()}
            continue
        if answer["id"] == number and answer["node"] in waiting:
            del waiting[answer["node"]]
            found[answer["node"]] = answer["answer"]
    return found | {node: {ERROR: f"no answer in {timeout_s:.0f} s"} for node in waiting}


def serve(name: str, handlers: Mapping[str, Handler], hello: Answer | None = None) -> None:
    """Answer orders from standard input until it is closed, in the order in which they come.

    Only answers go to standard output: whatever else is printed goes to standard error.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    orders: queue.Queue[Order | None] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders, name), daemon=True).start()
    _tell(out, name, HELLO, hello or {})
    while (order := orders.get()) is not None:
        _tell(out, name, order["id"], _answer(handlers, order))


def _read_orders(orders: "queue.Queue[Order | None]", name: str) -> None:
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            order = json.loads(line)
            if order.get("to") is None or name in order["to"]:
                orders.put(order)
    orders.put(None)


def _tell(out: Any, name: str, number: object, answer: Answer) -> None:
    try:
        out.write(json.dumps({"node": name, "id": number, "answer": answer}) + "\n")
        out.flush()
    except OSError:  # nobody listens any more
        os._exit(1)


def _answer(handlers: Mapping[str, Handler], order: Order) -> Answer:
    try:
        return handlers[order["do"]](order)
    except PenstockError as error:
        return {ERROR: str(error)}
    except OSError as error:
        return {ERROR: system_error(error)}
    except Exception as error:
        traceback.print_exc()
        return {ERROR: f"{type(error).__name__}: {error}"}
