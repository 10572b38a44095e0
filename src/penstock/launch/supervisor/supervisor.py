"""The supervisor of a run: it starts the ranks, watches them and restarts them after a fault.

Processes come from `fork_client.py` and signs of life from `watcher.py`; `policy/restart.py`
decides when to restart; ranks write in their journals how they ended (`attempt.py`).
"""

import contextlib
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import RunFailed
from penstock.launch.prepare.launch_plan import BudgetLimit
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.replan import Replanner
from penstock.launch.supervisor import environment, stacks
from penstock.launch.supervisor.attempt import AttemptRecords, ObservedEnd, has_trained
from penstock.launch.supervisor.fork_client import RANK, modules
from penstock.launch.supervisor.head_start import HeadStart
from penstock.launch.supervisor.hours import HourWatch
from penstock.launch.supervisor.quorum import Quorum
from penstock.launch.supervisor.rank_processes import RankProcesses
from penstock.launch.supervisor.signals import on_stop_signal
from penstock.launch.supervisor.watcher import Watcher
from penstock.ledger.journal.events import (
    AttemptFailed,
    AttemptLaunched,
    BudgetReached,
    DisplayFailed,
    GraceOver,
    HangFound,
    PauseEnded,
    RunPaused,
    RunResized,
    StopSignal,
    StragglerChanged,
)
from penstock.ledger.journal.read import next_attempt
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.meter.rendezvous import loopback_store
from penstock.plan.job.layout import Layout
from penstock.policy import hang, preempt, restart
from penstock.run.folder import RunFolder
from penstock.train.replicas.membership import ReplicaMembership

POLL_S = 0.1
FULL_BYTES = 1 << 20  # a disk with less free than this is full


@dataclass(frozen=True)
class RunOutcome:
    """How an invocation of a run ended on this host."""

    result: str  # "done", "stopped", "stopped early" or "failed"; on several hosts also "left" …
    error: str = ""
    exit_code: int = 0


@dataclass
class Supervisor:
    """One run's ranks on this machine."""

    folder: RunFolder
    journal: SupervisorJournal
    ranks: int
    threads: int  # CPU threads of a rank
    restarts_allowed: int  # guard.restarts
    timeout_s: float  # guard.timeout
    listener: Listener  # shows the run; a `listener.SafeListener`, so it never raises
    replanner: Replanner  # for ranks that run out of memory
    grace_s: float = 30.0  # guard.grace
    deterministic: bool = False
    compiled: str = "auto"  # train.compile
    head_start: HeadStart = field(default_factory=HeadStart)  # the fork server, if it runs already
    live: bool = False  # guard.mode: replicas go on without each other
    limit: BudgetLimit | None = None  # [budget], as a moment of the clock
    hours: HourWatch | None = None  # budget.hours_csv
    regroup_reason: str = ""  # why the present attempt is to save, stop and start again
    last_reason: str = ""  # of the last fault
    last_stack: str = ""
    resized: bool = False  # the last attempt had fewer ranks because of its hour
    over_budget: bool = False  # the budget is spent, and that is on record
    display_failed: bool = False  # and it is on record
    stop_requested: bool = False  # by a signal
    stop_signal: int = 0  # which one
    stop_s: float = 0.0  # when, on the monotonic clock
    stop_unshown: bool = False  # to be shown later: a signal handler must not print
    processes: RankProcesses = field(init=False)
    watcher: Watcher = field(init=False)
    quorum: Quorum | None = None  # of the attempt that runs, in live mode

    def run(self) -> RunOutcome:
        """Start the ranks; start them again after a fault; return when the run ends or gives up."""
        # The store lives here, not in a rank: it survives the ranks and picks its own free port.
        self.store = loopback_store()
        state = restart.RestartState(self.restarts_allowed)
        action: restart.Action = "restart"
        self.processes = self.open_processes()
        with on_stop_signal(self._request_stop), contextlib.closing(self.processes):
            while action == "restart":
                if not self._wait_for_its_hour():
                    return RunOutcome("stopped")
                attempt = next_attempt(self.folder.journal)
                self.begin_attempt(attempt)
                self.journal.write(AttemptLaunched(attempt=attempt, ranks=self.ranks))
                self._record_size(attempt)
                records = AttemptRecords(self.folder, attempt, self.ranks)
                end = self._run_attempt(attempt, records)
                finished = self.quorum.finished_ranks(self._exit_codes()) if self.quorum else []
                ended = records.ended(finished)
                if end.requested:
                    ended = restart.AttemptEnd(("stopped",) * self.ranks, ended.step)
                state, action = restart.decide(state, ended)
                if action == "finish" and self.continues(ended):
                    action = "restart"
                elif action != "finish":
                    action = self._record_fault(records, end, ended, action)
                if action == "restart" and self.stop_requested:
                    return RunOutcome("stopped", "a rank failed while the run was stopping")
                if action == "restart" and self._check_budget():
                    return RunOutcome("stopped", "a rank failed at the end of the budget")
        self._show(self._refresh)  # what came in the last moment
        if action == "give_up":
            return self._explain_give_up(records, ended)
        result = next((r for r in ("stopped", restart.EARLY) if r in ended.results), "done")
        return RunOutcome(result, end.reason)

    @property
    def device(self) -> str:
        return self.folder.read_launch_record().device

    # `launch/hosts/supervisor.py` overrides these, where the ranks are on several hosts.

    def open_processes(self) -> RankProcesses:
        """Return the processes that ranks run in."""
        env = environment.for_fork_server(self.threads)
        return self.head_start.take(env, modules(self.device, self.compiled))

    def begin_attempt(self, attempt: int) -> None:
        """Choose the hosts of the attempt and set the number of ranks."""
        self.regroup_reason = ""
        if self.hours is not None:
            launch = self.folder.read_launch_record()
            whole = Layout(**launch.layout)
            layout = self.hours.fit(whole)
            hour_layout = layout.to_json() if layout.ranks < whole.ranks else {}
            if hour_layout != launch.hour_layout:
                self.folder.write_plan(self.folder.read_plan() | {"hour_layout": hour_layout})
            self.ranks = layout.ranks

    def poll_hosts(self) -> None:
        """Notice hosts that come, leave or ask for something. Called ten times a second."""

    def continues(self, ended: restart.AttemptEnd) -> bool:
        """Return whether ranks that all ended well only stopped to start again, later or on other
        hosts. A run that finished meanwhile is done.
        """
        self.folder.acknowledge("regroup")
        stops = self.stop_requested or self.over_budget or self._asked_to_stop()
        return bool(self.regroup_reason) and "stopped" in ended.results and not stops

    def blame(self, rank: int, reason: str) -> None:
        """Count a fault against the host or the accelerator of a rank."""

    def host_failure(self, rank: int) -> str:
        """Return how the host of a dead rank failed; "" where it did not."""
        return ""

    # An attempt

    def _run_attempt(self, attempt: int, records: AttemptRecords) -> ObservedEnd:
        """Run one attempt to its end; return how it ended as seen from outside."""
        try:
            self._wait_until_ready()
            self.watcher = Watcher(
                self.folder.scratch, self.folder.journal, attempt, self.ranks, self.timeout_s
            )
            self.quorum = self._open_quorum(records) if self.live else None
            for rank in range(self.ranks):
                self.start_rank(rank, attempt, records)
            while True:
                if end := self._check_exits() or self._check_hang(records) or self._check_stop():
                    return end
                self.poll_hosts()
                self._check_budget()
                self._check_hours()
                self._show(self._refresh)
                self.processes.wait(POLL_S)
        finally:
            self.processes.end_ranks()  # the ranks that are left

    def _check_exits(self) -> ObservedEnd | None:
        """Return the end of the attempt once its processes have ended; in live mode some may."""
        codes = self._exit_codes()
        died = [rank for rank, code in codes.items() if code]
        goes_on = self.quorum.update(codes) if self.quorum else not died and None in codes.values()
        if goes_on:
            return None
        reason = self.quorum.end_reason if self.quorum else ""
        return ObservedEnd(died, now(), {rank: codes[rank] or 0 for rank in died}, reason)

    def _open_quorum(self, records: AttemptRecords) -> Quorum:
        replicas = int(self.folder.read_launch_record().attempt_layout["replicate"])
        return Quorum(
            membership=ReplicaMembership(self.store, f"attempt-{records.attempt}"),
            processes=self.processes,
            records=records,
            replicas=replicas,
            ranks_per_replica=self.ranks // replicas,
            restarts_allowed=self.restarts_allowed,
            start=lambda rank, life: self.start_rank(
                rank, records.attempt, records, PENSTOCK_LIFE=str(life)
            ),
            journal=self.journal,
            host_failure=self.host_failure,
            show_fault=lambda rank, reason, action: self._show(
                lambda: self.listener.fault(rank, reason, action)
            ),
        )

    def _exit_codes(self) -> dict[int, int | None]:
        codes = self.processes.exit_codes()
        return {rank: codes[rank] for rank in range(self.ranks)}

    def _wait_until_ready(self) -> None:
        """Wait for the imports of the ranks, which give no sign of life before."""
        while not self.processes.ready and not self.processes.lost:
            self.processes.wait(POLL_S)
            self._show(self._refresh)

    def start_rank(self, rank: int, attempt: int, records: AttemptRecords, **env: str) -> None:
        rendezvous = environment.Rendezvous(
            attempt, self.ranks, self.store.port, deterministic=self.deterministic
        )
        if self.device == "cuda":
            env |= environment.for_flight_recorder(records.logs)
        self.watcher.rank_started(rank)
        arguments = (RANK, str(self.folder.path), str(attempt))
        self.processes.start(rank, rendezvous.env(rank) | env, arguments, records.logs)

    def _check_hang(self, records: AttemptRecords) -> ObservedEnd | None:
        """Return the end of an attempt that hangs, with every rank's stack on record."""
        living, stopped = self.processes.pids(), self.processes.stopped_ranks()
        self._record_stragglers(records.attempt)
        if self.watcher.find_hang(living, stopped) is None:
            return None
        stack = stacks.collect(self.processes, list(living), records.logs)
        waits = {rank: stacks.in_collective(text) for rank, text in stack.items()}
        found = self.watcher.find_hang(living, stopped, waits)
        if found is None:  # the ranks went on meanwhile
            return None
        t = now()
        self.journal.write(
            HangFound(
                attempt=records.attempt,
                ranks=list(found.ranks),
                rank=found.ranks[0] if found.ranks else None,
                phase=found.phase,
                step=found.step,
                since=t - found.still_s,
                why=found.why,
            ),
            t=t,
        )
        reason, since = self._describe_hang(found, stack), t - found.still_s
        if self.quorum and found.ranks and self.quorum.drop_ranks(found.ranks, reason, since):
            return None
        return ObservedEnd(list(found.ranks), t, reason=reason, since=since)

    def _describe_hang(self, found: hang.Hang, stack: dict[int, str]) -> str:
        if found.phase in ("start", "join"):
            return f"the ranks did not meet within {self.timeout_s:g} s ({found.why})"
        frames = [stacks.innermost_frame(stack.get(rank, "")) for rank in found.ranks]
        where = f" at {frames[0]}" if frames and frames[0] else ""
        return (
            f"hang: no sign for {found.still_s:.0f} s from {found.phase} of step {found.step}"
            f"{where}: {found.why}"
        )

    def _record_stragglers(self, attempt: int) -> None:
        for change in self.watcher.straggler_changes():
            self.journal.write(
                StragglerChanged(
                    attempt=attempt,
                    rank=change.rank,
                    factor=round(change.factor, 3),
                    slow=change.slow,
                )
            )
            self._show(partial(self.listener.straggler, change))

    def _request_stop(self, number: int) -> None:
        """Ask the ranks to save and stop; runs in a signal handler."""
        self.stop_unshown = self.stop_requested = True
        self.stop_signal, self.stop_s = number, time.monotonic()
        self.folder.request("stop")
        self.journal.write(StopSignal(signal=signal.Signals(number).name))

    def _check_stop(self) -> ObservedEnd | None:
        """Return the end of an attempt that was asked to stop and has nothing to save, or no time.

        Ranks that have something to save end by themselves.
        """
        if not self.stop_requested and not self.folder.control_requests()["stop"]:
            return None
        preempted = self.stop_signal == signal.SIGTERM
        grace_s = self.grace_s if preempted else None
        state = preempt.PreemptState(self.stop_s, grace_s, self.watcher.began_step)
        match preempt.decide(state, time.monotonic()):
            case "end":
                return ObservedEnd([], now(), requested=True)
            case "kill":
                reason = f"guard.grace = {self.grace_s:g} s was over before the save was"
                self.journal.write(GraceOver(grace_s=self.grace_s))
                return ObservedEnd([], now(), reason=reason, requested=True)
        return None

    def _check_budget(self) -> bool:
        """Return whether the budget is spent; the first time, ask the ranks to save and stop."""
        if self.limit is None or now() < self.limit.at_s:
            return False
        if not self.over_budget:
            self.over_budget = True
            self.folder.request("stop")
            self.journal.write(BudgetReached(budget=self.limit.words))
            self._show(lambda: self.listener.over_budget(self.limit.words if self.limit else ""))
        return True

    def _check_hours(self) -> None:
        """Ask the ranks to save and stop where this hour is for a pause, or for another number of
        ranks.
        """
        if self.hours is None or self.regroup_reason or self.stop_requested or self.over_budget:
            return
        if not self.watcher.began_step or self.hours.look().level == self.hours.level:
            return
        self.regroup_reason = self.hours.change()
        self.folder.request("regroup")
        pauses = self.hours.decision.level is None
        show = self.listener.paused if pauses else self.listener.resized
        self._show(partial(show, self.regroup_reason))

    def _wait_for_its_hour(self) -> bool:
        """Wait, with no rank at work, for an hour that the run may train in; False if it is to
        stop.
        """
        if self.hours is None:
            return True
        self.hours.ranks_ended()
        said = ""
        while self.hours.look().level is None:
            if self.stop_requested or self._check_budget() or self._asked_to_stop():
                break
            self.regroup_reason = words = f"paused {self.hours.words()}"
            if words != said:
                said = words
                self.journal.write(RunPaused(until=self.hours.decision.until_s, why=words))
                self._show(partial(self.listener.paused, words))
            self.processes.exit_codes()  # the ranks' hosts are looked after too
            self.poll_hosts()
            self._show(self._refresh)
            self.processes.wait(POLL_S)
        if said:
            self.folder.acknowledge("regroup")
            self.journal.write(PauseEnded())
            self._show(partial(self.listener.paused, ""))
        return self.hours.begin()

    def _record_size(self, attempt: int) -> None:
        """Record an attempt on fewer ranks than the run has, because of its hour, and the first one
        on all of them after that.
        """
        if self.hours is None:
            return
        launch = self.folder.read_launch_record()
        of = Layout(**launch.layout).ranks
        if self.ranks >= of and not self.resized:
            return
        self.resized = self.ranks < of
        words = self.hours.resized(self.ranks, of)
        self.journal.write(RunResized(attempt=attempt, ranks=self.ranks, of=of, why=words))
        self._show(partial(self.listener.resized, words))

    def _asked_to_stop(self) -> bool:
        """Return whether somebody asked for a stop; a request to regroup is none."""
        return (self.folder.control / "stop").exists()

    def _refresh(self) -> None:
        if self.stop_unshown:
            self.stop_unshown = False
            self.listener.stopping()
        self.listener.tick()

    def _show(self, call: Callable[[], None]) -> None:
        """Call the display; record once that it has failed."""
        call()
        if not self.display_failed and (problem := self.listener.problem()):
            self.display_failed = True
            self.journal.write(DisplayFailed(error=problem))

    def _record_fault(
        self,
        records: AttemptRecords,
        end: ObservedEnd,
        ended: restart.AttemptEnd,
        action: restart.Action,
    ) -> restart.Action:
        """Record a fault and return what to do: give up where no smaller layout is left.

        The rank to name is one that ran out of memory, else one that died without a record, else
        the first that failed; its peers only noticed.
        """
        full = [rank for rank, result in enumerate(ended.results) if result == "oom"]
        silent = [rank for rank in end.died if ended.results[rank] is None]
        failed = [] if end.reason else records.in_order_of_failure()
        rank = (full or silent or failed or end.died or [0])[0]
        record = records.end_record(rank)
        error = str(record.error or "") if record else ""
        if silent and not full:
            error = end.describe_exit(rank)
        reason = self.last_reason = end.reason or self.host_failure(rank) or error
        self.last_stack = records.last_stack(rank)
        layout = (
            self.replanner.apply_smaller_layout(records.attempt) if action == "replan" else None
        )
        if action == "replan":
            action = "restart" if layout else "give_up"
        self.blame(rank, reason)
        since = end.since or records.work_stopped_at(end.t, self.timeout_s)
        self.journal.write(
            AttemptFailed(
                since=since, attempt=records.attempt, rank=rank, reason=reason, action=action
            ),
            t=end.t,
        )
        shown_action = f"{action} with {layout}" if layout else action
        self._show(lambda: self.listener.fault(rank, reason, shown_action))
        return action

    def _explain_give_up(self, records: AttemptRecords, ended: restart.AttemptEnd) -> RunOutcome:
        for rank, result in enumerate(ended.results):
            if result == "refused" and (record := records.end_record(rank)):
                code = int(str(record.exit_code))
                if has_trained(self.folder):  # the input was good for some steps: the run failed
                    code = RunFailed.exit_code
                return RunOutcome("failed", str(record.error), code)
        if "oom" in ended.results:
            return RunOutcome("failed", f"{self.last_reason}\n{self.replanner.advice()}", 1)
        full = shutil.disk_usage(self.folder.path).free < FULL_BYTES
        last = self.last_reason + ("; the disk is full" if full else "")
        tries = (
            f"{self.restarts_allowed + 1} tries in a row"
            if self.restarts_allowed
            else "the only try"
        )
        stack = f"\n{self.last_stack}" if self.last_stack else ""
        return RunOutcome(
            "failed",
            f"{tries} brought no new step; the last ended with: {last}. "
            f"`penstock logs {self.folder.name}` shows what the ranks printed.{stack}",
            1,
        )
