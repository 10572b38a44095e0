"""The ranks of this machine as processes, watched and restarted by the supervisor in this process.

Processes come from `fork_client.py`, signs of life from `watcher.py`; when to restart is
`policy/restart.py`; how a rank ended is what it wrote in its journal (`ending.py`).
"""

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import RunFailed
from penstock.launch.prepare.launch_plan import Limit
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.replan import Replanner
from penstock.launch.supervisor import environment, stacks, zygote
from penstock.launch.supervisor.ending import Ending, Fault, has_trained
from penstock.launch.supervisor.fork_client import RANK, Nursery, modules
from penstock.launch.supervisor.quorum import Quorum
from penstock.launch.supervisor.watcher import Watcher
from penstock.ledger.journal.read import next_attempt
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.meter.rendezvous import loopback_store
from penstock.policy import hang, preempt, restart
from penstock.run.folder import RunFolder
from penstock.train.replicas.board import Board

POLL_S = 0.1
FULL_BYTES = 1 << 20  # less free than this is a full disk


@dataclass(frozen=True)
class Outcome:
    result: str  # "done", "stopped", "stopped early" or "failed"
    error: str = ""
    exit_code: int = 0


@dataclass
class Local:
    """One run's ranks on this machine."""

    folder: RunFolder
    journal: SupervisorJournal
    ranks: int
    threads: int  # CPU threads of a rank
    allowed: int  # guard.restarts
    timeout_s: float  # guard.timeout
    listener: Listener  # the display lives in it; `listener.Shielded`, so it never raises
    replanner: Replanner  # for ranks that run out of memory
    grace_s: float = 30.0  # guard.grace
    deterministic: bool = False
    live: bool = False  # guard.mode: replicas go on without each other
    limit: Limit | None = None  # [budget], as a moment of the clock
    last_reason: str = ""  # of the last fault
    last_stack: str = ""
    limit_told: bool = False
    display_failed: bool = False  # and it is on record
    stop_seen: bool = False  # somebody asked for a stop by a signal
    stop_signal: int = 0  # which
    stop_s: float = 0.0  # when, on the monotonic clock
    stop_asked: bool = False  # and it was not told yet: a handler is no place to print
    nursery: Nursery = field(init=False)
    watcher: Watcher = field(init=False)
    quorum: Quorum | None = None  # of the attempt that runs, in live mode

    def run(self) -> Outcome:
        """Start the ranks; start them again after a fault; return when the run ends or gives up."""
        # The store lives here, not in a rank: it survives the ranks and picks its own free port.
        self.store = loopback_store()
        state = restart.RestartState(self.allowed)
        action: restart.Action = "restart"
        self.nursery = self.make_nursery()
        with self._signals(), contextlib.closing(self.nursery):
            while action == "restart":
                attempt = next_attempt(self.folder.journal)
                self.muster(attempt)
                self.journal.event("launch", attempt=attempt, ranks=self.ranks)
                ending = Ending(self.folder, attempt, self.ranks)
                fault = self._attempt(attempt, ending)
                ended = ending.ended(self.quorum.done(self._codes()) if self.quorum else [])
                if fault.asked:
                    ended = restart.AttemptEnd(("stopped",) * self.ranks, ended.step)
                state, action = restart.decide(state, ended)
                if action == "finish" and self.goes_on(ended):
                    action = "restart"
                elif action != "finish":
                    action = self._record_fault(ending, fault, ended, action)
                if action == "restart" and self.stop_seen:
                    return Outcome("stopped", "a rank failed while the run was stopping")
                if action == "restart" and self._over():
                    return Outcome("stopped", "a rank failed at the end of the budget")
        self._show(self._shown)  # what came in the last moment
        if action == "give_up":
            return self._why_given_up(ending, ended)
        result = next((r for r in ("stopped", restart.EARLY) if r in ended.results), "done")
        return Outcome(result, fault.words)

    @property
    def device(self) -> str:
        return str(self.folder.read_plan()["device"])

    # What differs where the ranks are on several hosts: `launch/hosts/supervisor.py`.

    def make_nursery(self) -> Nursery:
        return Nursery(
            environment.for_nursery(self.threads), modules(self.device), zygote.from_environment()
        )

    def muster(self, attempt: int) -> None:
        """Who takes part in the attempt that begins."""

    def look(self) -> None:
        """About ten times a second."""

    def goes_on(self, ended: restart.AttemptEnd) -> bool:
        """Whether ranks that have all ended well are only to start again."""
        return False

    def blame(self, rank: int, reason: str) -> None:
        """Whom a fault counts against."""

    def why_lost(self, rank: int) -> str:
        """How a rank came to die, where more is known than that it did."""
        return ""

    # An attempt

    def _attempt(self, attempt: int, ending: Ending) -> Fault:
        """Run one attempt to its end; how it looked from outside."""
        try:
            self._until_ready()
            self.watcher = Watcher(
                self.folder.scratch, self.folder.journal, attempt, self.ranks, self.timeout_s
            )
            self.quorum = self._live(ending) if self.live else None
            for rank in range(self.ranks):
                self.start_rank(rank, attempt, ending)
            while True:
                if fault := self._dead() or self._watched(ending) or self._stopped():
                    return fault
                self.look()
                self._over()
                self._show(self._shown)
                self.nursery.wait(POLL_S)
        finally:
            self.nursery.end()  # whoever is left

    def _dead(self) -> Fault | None:
        """The end of the attempt, by the end of its processes; in live mode some may end."""
        codes = self._codes()
        died = [rank for rank, code in codes.items() if code]
        goes_on = self.quorum.look(codes) if self.quorum else not died and None in codes.values()
        if goes_on:
            return None
        words = self.quorum.ended if self.quorum else ""
        return Fault(died, now(), {rank: codes[rank] or 0 for rank in died}, words)

    def _live(self, ending: Ending) -> Quorum:
        replicas = int(self.folder.read_plan()["layout"]["replicate"])
        return Quorum(
            board=Board(self.store, f"attempt-{ending.attempt}"),
            nursery=self.nursery,
            ending=ending,
            replicas=replicas,
            each=self.ranks // replicas,
            allowed=self.allowed,
            start=lambda rank, life: self.start_rank(
                rank, ending.attempt, ending, PENSTOCK_LIFE=str(life)
            ),
            journal=self.journal,
            why_lost=self.why_lost,
            tell=lambda rank, why, now_on: self._show(
                lambda: self.listener.fault(rank, why, now_on)
            ),
        )

    def _codes(self) -> dict[int, int | None]:
        codes = self.nursery.codes()
        return {rank: codes[rank] for rank in range(self.ranks)}

    def _until_ready(self) -> None:
        """The imports of the ranks are done; no sign of life can be expected before."""
        while not self.nursery.ready and not self.nursery.lost:
            self.nursery.wait(POLL_S)
            self._show(self._shown)

    def start_rank(self, rank: int, attempt: int, ending: Ending, **env: str) -> None:
        meeting = environment.Meeting(
            attempt, self.ranks, self.store.port, deterministic=self.deterministic
        )
        if self.device == "cuda":
            env |= environment.for_flight_recorder(ending.logs)
        self.watcher.started(rank)
        arguments = (RANK, str(self.folder.path), str(attempt))
        self.nursery.start(rank, meeting.env(rank) | env, arguments, ending.logs)

    def _watched(self, ending: Ending) -> Fault | None:
        """Signs of life; a hang is named, with every rank's stack on record, and ended."""
        living, stopped = self.nursery.pids(), self.nursery.stopped()
        self._tell_slow(ending.attempt)
        if self.watcher.look(living, stopped) is None:
            return None
        stack = stacks.collect(self.nursery, list(living), ending.logs)
        waits = {rank: stacks.waits(text) for rank, text in stack.items()}
        named = self.watcher.look(living, stopped, waits)
        if named is None:  # it came back meanwhile
            return None
        t = now()
        self.journal.event(
            "hang",
            t=t,
            attempt=ending.attempt,
            ranks=list(named.ranks),
            rank=named.ranks[0] if named.ranks else None,
            phase=named.phase,
            step=named.step,
            since=t - named.still_s,
            why=named.why,
        )
        words = self._hang_words(named, stack)
        if self.quorum and named.ranks and self.quorum.lose(named.ranks, words, t - named.still_s):
            return None
        return Fault(list(named.ranks), t, words=words, since=t - named.still_s)

    def _hang_words(self, named: hang.Hang, stack: dict[int, str]) -> str:
        if named.phase in ("start", "join"):
            return f"the ranks did not meet within {self.timeout_s:g} s ({named.why})"
        at = [stacks.where(stack.get(rank, "")) for rank in named.ranks]
        where = f" at {at[0]}" if at and at[0] else ""
        return (
            f"hang: no sign for {named.still_s:.0f} s from {named.phase} of step {named.step}"
            f"{where}: {named.why}"
        )

    def _tell_slow(self, attempt: int) -> None:
        for change in self.watcher.slow():
            self.journal.event(
                "straggler",
                attempt=attempt,
                rank=change.rank,
                factor=round(change.factor, 3),
                slow=change.slow,
            )
            self._show(partial(self.listener.straggler, change))

    def _stopped(self) -> Fault | None:
        """Of a run that is to stop: the end of the attempt, unless its ranks are to save first."""
        if not self.stop_seen and not self.folder.control_requests()["stop"]:
            return None
        noticed = self.stop_signal == signal.SIGTERM
        grace_s = self.grace_s if noticed else None
        state = preempt.PreemptState(self.stop_s, grace_s, self.watcher.begun)
        match preempt.decide(state, time.monotonic()):
            case "end":
                return Fault([], now(), asked=True)
            case "kill":
                words = f"guard.grace = {self.grace_s:g} s was over before the save was"
                self.journal.event("grace_over", grace_s=self.grace_s)
                return Fault([], now(), words=words, asked=True)
        return None

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
        """Call a display, and put on record once that it shows nothing any more."""
        call()
        if not self.display_failed and (problem := self.listener.problem()):
            self.display_failed = True
            self.journal.event("display_failed", error=problem)

    def _record_fault(
        self, ending: Ending, fault: Fault, ended: restart.AttemptEnd, action: restart.Action
    ) -> restart.Action:
        """Puts it on record; what is done now, which is to give up where nothing smaller is left.

        A rank that was full is the one to name, or one that vanished without a word, or the one
        that failed first; its peers only noticed.
        """
        full = [rank for rank, result in enumerate(ended.results) if result == "oom"]
        silent = [rank for rank in fault.died if ended.results[rank] is None]
        rank = (full or silent or ending.by_failure(fault.died) or [0])[0]
        said = str(ending.last_word(rank).get("error", ""))
        if silent and not full:
            said = fault.how_died(rank)
        reason = self.last_reason = fault.words or self.why_lost(rank) or said
        self.last_stack = ending.last_stack(rank)
        layout = self.replanner.take(ending.attempt) if action == "replan" else None
        if action == "replan":
            action = "restart" if layout else "give_up"
        self.blame(rank, reason)
        since = fault.since or ending.stopped_since(fault.t, self.timeout_s)
        self.journal.event(
            "fault",
            t=fault.t,
            since=since,
            attempt=ending.attempt,
            rank=rank,
            reason=reason,
            action=action,
        )
        now_on = f"{action} with {layout}" if layout else action
        self._show(lambda: self.listener.fault(rank, reason, now_on))
        return action

    def _why_given_up(self, ending: Ending, ended: restart.AttemptEnd) -> Outcome:
        for rank, result in enumerate(ended.results):
            if result == "refused":
                end = ending.last_word(rank)
                code = int(str(end["exit_code"]))
                if has_trained(self.folder):  # the input was good for some steps: the run failed
                    code = RunFailed.exit_code
                return Outcome("failed", str(end["error"]), code)
        if "oom" in ended.results:
            return Outcome("failed", f"{self.last_reason}\n{self.replanner.advice()}", 1)
        full = shutil.disk_usage(self.folder.path).free < FULL_BYTES
        last = self.last_reason + ("; the disk is full" if full else "")
        tries = f"{self.allowed + 1} tries in a row" if self.allowed else "the only try"
        stack = f"\n{self.last_stack}" if self.last_stack else ""
        return Outcome(
            "failed",
            f"{tries} brought no new step; the last ended with: {last}. "
            f"`penstock logs {self.folder.name}` shows what the ranks printed.{stack}",
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
            self.stop_signal, self.stop_s = number, time.monotonic()
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
