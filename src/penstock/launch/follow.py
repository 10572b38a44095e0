"""Following a submitted run: its queue, then its journal, until its job ends.

The nodes train; this process only reads. It may end at any time and be started again.
"""

import contextlib
import threading
import time
from dataclasses import dataclass, field

from penstock.data.store.meeting_place import MeetingPlace, SharedFolder
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, RunFailed
from penstock.guard.tiers.journal_facts import last_result, recorded_step
from penstock.launch.engines.engine import (
    FAR,
    JobPhase,
    JobState,
    Submission,
    far_logs,
    is_out_of_reach,
    meets,
)
from penstock.launch.engines.table import keep_end, open_engine, state_of
from penstock.launch.hosts import journal_sync, meeting
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.events import InvocationStarted
from penstock.ledger.journal.read import lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.policy.restart import WELL
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run

INVOCATIONS = "invocations"  # key of `Submission.detail`: of the run before this job
POLL_S = 2.0  # between two questions to the engine
TICK_S = 0.1


@dataclass
class JobWatch:
    """A thread that asks the engine for the state of a job, and fetches the run's records.

    It fetches nothing where the run folder is on a disk that the nodes share.
    """

    folder: RunFolder
    place: MeetingPlace
    submission: Submission
    state: JobState = field(default_factory=lambda: JobState(JobPhase.QUEUED, "submitted"))
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    """What ended the thread: without it the state would stand still, and the follower wait."""

    def start(self) -> None:
        threading.Thread(target=self._watch, name="job", daemon=True).start()

    def _watch(self) -> None:
        try:
            self._poll()
        except Exception as error:
            self.error = error

    def _poll(self) -> None:
        while True:
            state = state_of(self.submission)
            with contextlib.suppress(OSError, PenstockError):  # it is tried again
                fetch_records(self.folder, self.place)
            self.state = state
            if state.phase is JobPhase.ENDED or self.ended.wait(POLL_S):
                return


def fetch_records(folder: RunFolder, place: MeetingPlace) -> None:
    """Fetch journal, run file and plan from the meeting place, unless the folder is shared."""
    inside = isinstance(place, SharedFolder) and place.path.is_relative_to(folder.path)
    if not inside and not journal_sync.shares_folder(folder, place):
        journal_sync.pull(folder, place)


def follow(run: Run, submission: Submission, listener: Listener) -> None:
    """Show the run until its job ends. Raises RunFailed where the run failed.

    Ctrl-C returns, and the run goes on.
    """
    folder = RunFolder(run.folder)
    watch = JobWatch(folder, meeting.meeting_place(run), submission)
    watch.start()
    try:
        _show(run, watch, listener)
    except KeyboardInterrupt:
        listener.detached(
            f"job {submission.job} goes on; `penstock train` with the same words follows it again, "
            f"`penstock status {run.name}` shows it, `penstock stop {run.name}` stops it"
        )
        return
    finally:
        watch.ended.set()
    keep_end(folder.path, submission, watch.state)
    refuse_failure(run, submission, watch.state)


def _show(run: Run, watch: JobWatch, listener: Listener) -> None:
    words, shown = "", False
    while True:
        if watch.error:
            raise watch.error
        state = watch.state
        if state.words != words and (state.phase is not JobPhase.RUNNING or not shown):
            words = state.words
            listener.queued(words)
        if state.phase is JobPhase.ENDED:
            return
        if not shown and state.phase is JobPhase.RUNNING and (plan := _plan(watch.folder)):
            shown = True
            listener.following(watch.folder, plan, lambda what: ask(run, watch.submission, what))
        listener.tick()
        time.sleep(TICK_S)


def _plan(folder: RunFolder) -> dict[str, object]:
    """Return the plan of the run's last launch; empty before its first."""
    try:
        plan = folder.read_plan()
    except (PenstockError, OSError):  # half written, on a disk of its own kind
        return {}
    return plan if LaunchRecord.from_json(plan).launched and folder.journal.exists() else {}


def count_invocations(folder: RunFolder) -> int:
    """Return how often the run was begun on any node."""
    return len(lines_of(read_events(folder.journal / SUPERVISOR), InvocationStarted))


def refuse_failure(run: Run, submission: Submission, state: JobState) -> None:
    """Raise RunFailed unless the job began the run and it ended well, or a person stopped it.

    Where the records are on a volume that only the nodes see, the engine's word has to do.
    """
    folder = RunFolder(run.folder)
    if is_out_of_reach(run) and state.well:
        return
    began = count_invocations(folder) > int(submission.detail.get(INVOCATIONS, "0"))
    logs = far_logs(submission) or f"penstock logs {folder.name}"
    if began and last_result(folder) in WELL:
        _refuse_lost_end(run, folder, logs)
        return
    raise RunFailed(
        f"run '{folder.name}' did not end well: {state.words}. `{logs}` shows what its nodes "
        "printed; the same command goes on from its last checkpoint"
    )


def _refuse_lost_end(run: Run, folder: RunFolder, logs: str) -> None:
    """Raise RunFailed where the last checkpoint stayed on a disk that is gone with its machine."""
    if run.cluster.launcher not in FAR or not is_url(run.guard.durable or ""):
        return
    made, kept = recorded_step(folder), recorded_step(folder, ("remote",))
    if made is not None and made > (kept or 0):
        has = "no checkpoint of it" if kept is None else f"step {kept}"
        raise RunFailed(
            f"run '{folder.name}' ended at step {made}, and that checkpoint did not reach "
            f'guard.durable = "{run.guard.durable}", which has {has}: it went with its machine. '
            f"`{logs}` shows why the bucket did not take it"
        )


def ask(run: Run, submission: Submission, what: str) -> None:
    """Ask a run on other machines for `save` or `stop`, by its folder and by its meeting place."""
    folder = RunFolder(run.folder)
    folder.make()
    folder.request(what)
    if meets(run):
        place = meeting.meeting_place(run)
        with contextlib.suppress(OSError):  # a shared folder is enough
            if what == "stop":  # nodes that the engine starts later must not begin it again
                meeting.mark_stopped(place, submission.token)
            meeting.request(place, what)


def stop_job(run: Run, submission: Submission, state: JobState, now: bool) -> str:
    """Stop a submitted run; return what was done. `now` ends its job without a save.

    A job that still waits is ended as well, and so is one that only its engine can reach.
    """
    if now or state.phase is JobPhase.QUEUED or is_out_of_reach(run):
        open_engine(submission.engine).cancel(submission)
        keep_end(RunFolder(run.folder).path, submission, JobState(JobPhase.ENDED, "cancelled"))
        return f"job {submission.job} is cancelled; nothing of it is left"
    ask(run, submission, "stop")
    return f"asked '{run.name}' to save and stop after its current step"
