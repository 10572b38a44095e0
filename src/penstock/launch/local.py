"""The ranks of this machine as processes, watched and restarted by the supervisor in this process.

Processes come from torch's elastic multiprocessing (sessions, log files, killing); when to restart
is `policy/restart.py`; how a rank ended is what it wrote in its journal.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import PContext, start_processes
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from penstock.launch.listener import Listener
from penstock.ledger.journal import SupervisorJournal
from penstock.ledger.readers import Event, next_attempt, read_events, read_steps
from penstock.ledger.records import file_name
from penstock.policy import restart
from penstock.run.folder import RunFolder

POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    result: str  # "done", "stopped" or "failed"
    error: str = ""
    exit_code: int = 0


class RankLogs(LogsSpecs):
    """`rank-0.out` and `rank-0.err` in the folder of the attempt, and nothing on the terminal."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        os.makedirs(self.root_log_dir)

        def files(ending: str) -> dict[int, str]:
            return {rank: os.path.join(self.root_log_dir, f"rank-{rank}.{ending}") for rank in envs}

        return LogsDest(files("out"), files("err"), {}, {}, files("error"))

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)


@dataclass
class Local:
    """One run's ranks on this machine."""

    folder: RunFolder
    journal: SupervisorJournal
    ranks: int
    device: str  # "cpu" or "cuda"
    threads: int  # CPU threads of a rank
    allowed: int  # guard.restarts
    timeout_s: float  # guard.timeout
    listener: Listener  # the display lives in it
    deterministic: bool = False
    stop_asked: bool = False  # by a signal, and not told yet: a handler is no place to print

    def run(self) -> Outcome:
        """Start the ranks; start them again after a fault; return when the run ends or gives up."""
        # The store lives here, not in a rank: it survives the ranks and picks its own free port.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        state = restart.State(self.allowed)
        action: restart.Action = "restart"
        with self._signals():
            while action == "restart":
                attempt = next_attempt(self.folder.journal)
                self.journal.event("launch", attempt=attempt, ranks=self.ranks)
                fault = self._attempt(attempt, store.port)
                ended = self._ended(attempt)
                state, action = restart.decide(state, ended)
                if action != "finish":
                    self._record_fault(attempt, fault, ended, action)
        if action == "give_up":
            return self._why_given_up(attempt, ended)
        return Outcome("stopped" if "stopped" in ended.results else "done")

    def _attempt(self, attempt: int, port: int) -> str:
        """Run one attempt to its end; what went wrong, in words, or nothing."""
        processes = self._start(attempt, port)
        joined, deadline = False, time.monotonic() + self.timeout_s
        try:
            while processes.wait(0) is None:
                if not joined:
                    joined = all(self._has(attempt, rank, "joined") for rank in range(self.ranks))
                    if not joined and time.monotonic() > deadline:
                        return f"the ranks did not meet within {self.timeout_s:g} s"
                self._show()
                time.sleep(POLL_S)
        finally:
            processes.close(signal.SIGKILL)  # whoever is left; a no-op after a clean end
        return ""

    def _show(self) -> None:
        """A display that breaks must not take the run with it; it is switched off and told of."""
        try:
            if self.stop_asked:
                self.stop_asked = False
                self.listener.stopping()
            self.listener.tick()
        except Exception as error:
            self.listener = Listener()
            self.journal.event("display_failed", error=f"{type(error).__name__}: {error}")
            traceback.print_exc()

    def _start(self, attempt: int, port: int) -> PContext:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        envs = {rank: self._environment(rank, attempt, port) for rank in range(self.ranks)}
        arguments = ("-m", "penstock.train.rank", str(self.folder.path), str(attempt))
        handlers = {s: signal.getsignal(s) for s in _SIGNALS}
        processes = start_processes(
            name="rank",
            entrypoint=sys.executable,
            args=dict.fromkeys(range(self.ranks), arguments),
            envs=envs,
            logs_specs=RankLogs(str(self.folder.logs / f"attempt-{attempt}")),
        )
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)  # elastic puts its own in their place
        return processes

    def _environment(self, rank: int, attempt: int, port: int) -> dict[str, str]:
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PENSTOCK_ATTEMPT": f"attempt-{attempt}",
            "PENSTOCK_SUPERVISOR": str(os.getpid()),
            "OMP_NUM_THREADS": str(self.threads),
            # Threads that spin while they wait starve their neighbours on a shared machine.
            "OMP_WAIT_POLICY": "passive",
            "PYTHONUNBUFFERED": "1",
            # Ranks of one machine talk over loopback, whatever its host name resolves to.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        if self.deterministic:
            env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what cuBLAS needs to repeat itself
        return env

    def _events(self, attempt: int, rank: int) -> list[Event]:
        return read_events(
            self.folder.journal / file_name(attempt, range(rank, rank + 1), "events")
        )

    def _has(self, attempt: int, rank: int, kind: str) -> bool:
        return any(e.kind == kind for e in self._events(attempt, rank))

    def _ended(self, attempt: int) -> restart.Ended:
        results: list[str | None] = []
        step = 0
        for rank in range(self.ranks):
            ends = [e for e in self._events(attempt, rank) if e.kind == "end"]
            results.append(str(ends[-1].payload["result"]) if ends else None)
            name = file_name(attempt, range(rank, rank + 1), "steps")
            steps = read_steps(self.folder.journal / name)
            step = max(step, int(steps["step"][-1]) if len(steps) else 0)
        return restart.Ended(tuple(results), step)

    def _record_fault(
        self, attempt: int, fault: str, ended: restart.Ended, action: restart.Action
    ) -> None:
        # The rank that vanished without a word is the one to name; then the first that failed.
        silent = [r for r, result in enumerate(ended.results) if result is None]
        failed = [r for r, result in enumerate(ended.results) if result in ("failed", "refused")]
        rank = (silent or failed or [0])[0]
        reason = fault or (self._error(attempt, rank) if not silent else "the process died")
        self.journal.event("fault", attempt=attempt, rank=rank, reason=reason, action=action)
        self.listener.fault(rank, reason, action)

    def _error(self, attempt: int, rank: int) -> str:
        ends = [e for e in self._events(attempt, rank) if e.kind == "end"]
        return str(ends[-1].payload.get("error", "")) if ends else ""

    def _why_given_up(self, attempt: int, ended: restart.Ended) -> Outcome:
        for rank, result in enumerate(ended.results):
            if result == "refused":
                end = [e for e in self._events(attempt, rank) if e.kind == "end"][-1]
                return Outcome(
                    "failed", str(end.payload["error"]), int(str(end.payload["exit_code"]))
                )
        words = [e for e in (self._error(attempt, r) for r in range(self.ranks)) if e]
        last = words[0] if words else "a rank died without a word"
        tries = f"{self.allowed + 1} tries in a row" if self.allowed else "the only try"
        return Outcome(
            "failed",
            f"{tries} brought no new step; the last ended with: {last}. "
            f"`penstock logs {self.folder.name}` shows what the ranks printed.",
            1,
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM asks the ranks to save and stop; the second ends them now."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        seen = 0

        def ask(number: int, frame: object) -> None:
            nonlocal seen
            seen += 1
            if seen > 1:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.folder.wish("stop")
            self.journal.event("asked_to_stop", signal=signal.Signals(number).name)

        before = {s: signal.signal(s, ask) for s in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
