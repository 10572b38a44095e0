"""The ranks of this machine as processes, watched and restarted by the supervisor in this process.

Processes come from torch's elastic multiprocessing (sessions, log files, killing); when to restart
is `policy/restart.py`; how a rank ended is what it wrote in its journal.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import start_processes
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SubprocessContext

from penstock.guard.published import published, step_of
from penstock.home import home
from penstock.launch.foresee import Limit
from penstock.launch.listener import Listener
from penstock.launch.replan import Replanner
from penstock.ledger.journal import SupervisorJournal
from penstock.ledger.readers import Event, next_attempt, read_events, read_steps
from penstock.ledger.records import file_name
from penstock.meter.clock import now
from penstock.policy import restart
from penstock.run.folder import RunFolder

POLL_S = 0.1
FULL_BYTES = 1 << 20  # less free than this is a full disk


@dataclass(frozen=True)
class Outcome:
    result: str  # "done", "stopped" or "failed"
    error: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class Fault:
    """How an attempt ended as seen from outside: who died first, when, and why if not by dying."""

    died: list[int]
    t: float
    codes: dict[int, int] = field(default_factory=dict)  # exit codes of those
    words: str = ""

    def how_died(self, rank: int) -> str:
        """A rank that left no record, in words."""
        code = self.codes.get(rank, 0)
        if code >= 0:
            return f"the process ended with exit code {code} and no word"
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"the process was killed by {signal.Signals(-code).name}{hint}"


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
    threads: int  # CPU threads of a rank
    allowed: int  # guard.restarts
    timeout_s: float  # guard.timeout
    listener: Listener  # the display lives in it
    replanner: Replanner  # for ranks that run out of memory
    deterministic: bool = False
    limit: Limit | None = None  # [budget], as a moment of the clock
    last_reason: str = ""  # of the last fault
    limit_told: bool = False
    stop_seen: bool = False  # somebody asked for a stop by a signal
    stop_asked: bool = False  # and it was not told yet: a handler is no place to print

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
                self._show(self._shown)  # what came in its last moment
                ended = self._ended(attempt)
                state, action = restart.decide(state, ended)
                if action != "finish":
                    action = self._record_fault(attempt, fault, ended, action)
                if action == "restart" and self.stop_seen:
                    return Outcome("stopped", "a rank failed while the run was stopping")
                if action == "restart" and self._over():
                    return Outcome("stopped", "a rank failed at the end of the budget")
        if action == "give_up":
            return self._why_given_up(attempt, ended)
        return Outcome("stopped" if "stopped" in ended.results else "done")

    def _attempt(self, attempt: int, port: int) -> Fault:
        """Run one attempt to its end; how it looked from outside."""
        processes = self._start(attempt, port)
        joined, deadline = False, time.monotonic() + self.timeout_s
        try:
            while True:
                codes = {r: h.proc.poll() for r, h in processes.subprocess_handlers.items()}
                died = [rank for rank, code in codes.items() if code]
                if died or None not in codes.values():
                    return Fault(died, now(), {rank: codes[rank] or 0 for rank in died})
                if not joined:
                    joined = all(self._has(attempt, rank, "joined") for rank in range(self.ranks))
                    if not joined and time.monotonic() > deadline:
                        words = f"the ranks did not meet within {self.timeout_s:g} s"
                        return Fault([], now(), words=words)
                self._over()
                self._show(self._shown)
                time.sleep(POLL_S)
        finally:
            processes.close(signal.SIGKILL)  # whoever is left; a no-op after a clean end

    def _over(self) -> bool:
        """Whether the budget is spent; the first time, the ranks are asked to save and stop."""
        if self.limit is None or now() < self.limit.at_s:
            return False
        if not self.limit_told:
            self.limit_told = True
            self.folder.wish("stop")
            self.journal.event("budget_reached", budget=self.limit.words)
            self._show(lambda: self.listener.over_budget(self.limit.words if self.limit else ""))
        return True

    def _shown(self) -> None:
        if self.stop_asked:
            self.stop_asked = False
            self.listener.stopping()
        self.listener.tick()

    def _show(self, call: Callable[[], None]) -> None:
        """A display that breaks must not take the run with it; it is switched off and told of."""
        try:
            call()
        except Exception as error:
            self.listener = Listener()
            self.journal.event("display_failed", error=f"{type(error).__name__}: {error}")
            with contextlib.suppress(OSError):  # its terminal may be what broke
                traceback.print_exc()

    def _start(self, attempt: int, port: int) -> SubprocessContext:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        envs = {rank: self._environment(rank, attempt, port) for rank in range(self.ranks)}
        arguments = ("-m", "penstock.train.rank", str(self.folder.path), str(attempt))
        handlers = {s: signal.getsignal(s) for s in _ELASTIC_TAKES}
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
        assert isinstance(processes, SubprocessContext)
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
            # Otherwise glibc gives large tensors back to the kernel and faults them in again: up to
            # a tenth of a step on a CPU.
            "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
            "PYTHONUNBUFFERED": "1",
            # Ranks of one machine talk over loopback, whatever its host name resolves to.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        # Compiled kernels outlive the attempt: a restart finds them instead of making them again.
        for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "torch"), ("TRITON_CACHE_DIR", "triton")):
            env[name] = os.environ.get(name) or str(home() / "compiled" / folder)
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
        for rank in range(self.ranks):
            end = self._end(attempt, rank)
            results.append(str(end["result"]) if end else None)
        # Only what is saved is progress: an attempt that gets a step further and dies before its
        # save would otherwise be tried for ever.
        saved = published(self.folder.checkpoints)
        return restart.Ended(tuple(results), step_of(saved[0]) if saved else 0)

    def _record_fault(
        self, attempt: int, fault: Fault, ended: restart.Ended, action: restart.Action
    ) -> restart.Action:
        """Puts it on record; what is done now, which is to give up where nothing smaller is left.

        A rank that was full is the one to name, or one that vanished without a word; its peers only
        noticed.
        """
        full = [rank for rank, result in enumerate(ended.results) if result == "oom"]
        silent = [rank for rank in fault.died if ended.results[rank] is None]
        rank = (full or silent or fault.died or [0])[0]
        said = str(self._end(attempt, rank).get("error", ""))
        reason = fault.words or (fault.how_died(rank) if silent and not full else said)
        self.last_reason = reason
        layout = self.replanner.take(attempt) if action == "replan" else None
        if action == "replan":
            action = "restart" if layout else "give_up"
        since = self._stopped_since(attempt, fault.t)
        self.journal.event(
            "fault",
            t=fault.t,
            since=since,
            attempt=attempt,
            rank=rank,
            reason=reason,
            action=action,
        )
        now_on = f"{action} with {layout}" if layout else action
        self._show(lambda: self.listener.fault(rank, reason, now_on))
        return action

    def _stopped_since(self, attempt: int, t: float) -> float:
        """When work stopped: at the fault, or long before when the ranks hung until a timeout."""
        worked: list[float] = []
        for rank in range(self.ranks):
            name = file_name(attempt, range(rank, rank + 1), "steps")
            steps = read_steps(self.folder.journal / name)[-1:]
            worked += (steps["start"] + steps["total"]).tolist()
            worked += [e.end or e.t for e in self._events(attempt, rank) if e.kind != "end"]
        last = max(worked, default=t)  # a rank may die before it has written anything
        return last if t - last >= self.timeout_s else t

    def _end(self, attempt: int, rank: int) -> dict[str, object]:
        """A rank's last word; empty when it left none."""
        ends = [e.payload for e in self._events(attempt, rank) if e.kind == "end"]
        return ends[-1] if ends else {}

    def _why_given_up(self, attempt: int, ended: restart.Ended) -> Outcome:
        for rank, result in enumerate(ended.results):
            if result == "refused":
                end = self._end(attempt, rank)
                return Outcome("failed", str(end["error"]), int(str(end["exit_code"])))
        if "oom" in ended.results:
            return Outcome("failed", f"{self.last_reason}\n{self.replanner.advice()}", 1)
        full = shutil.disk_usage(self.folder.path).free < FULL_BYTES
        last = self.last_reason + ("; the disk is full" if full else "")
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
            self.stop_asked = self.stop_seen = True
            self.folder.wish("stop")
            self.journal.event("asked_to_stop", signal=signal.Signals(number).name)

        # `nohup` ignores the hang-up; without it a lost terminal is a reason to save and stop.
        heard = [s for s in _HEARD if signal.getsignal(s) is not signal.SIG_IGN]
        before = {s: signal.signal(s, ask) for s in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ELASTIC_TAKES = (*_HEARD, signal.SIGQUIT)
