"""`penstock train` on one of several hosts: prepare the run, take part in it, report its end."""

import os

from penstock.data.store.meeting_place import MeetingPlace
from penstock.errors import PenstockError, RunFailed
from penstock.launch.hosts import meeting
from penstock.launch.hosts.journal_sync import JournalSync
from penstock.launch.hosts.session import HostSession
from penstock.launch.hosts.supervisor import HANDED_OVER
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepare import prepare
from penstock.launch.prepare.recover import repair_plan
from penstock.launch.prepare.resume import decide_resume, report_start
from penstock.launch.supervisor import addresses
from penstock.launch.supervisor.head_start import HeadStart
from penstock.ledger.journal.events import LeaderLeft
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.meter.devices import Devices
from penstock.policy.restart import WELL
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run


def start(run: Run, machine: Devices, listener: Listener, began: float, early: HeadStart) -> None:
    """Take this host's part in the run, from beginning to end."""
    folder, place = RunFolder(run.folder), meeting.meeting_place(run)
    if _was_stopped(place):
        listener.host_message("the run was asked to stop before this node came")
        return
    with folder.lock(f"lock-{addresses.node()}"):
        journal_sync = JournalSync(folder, place)
        _pull(journal_sync, place)
        mended = repair_plan(folder)
        how = decide_resume(folder, run)
        for words in (*mended, *how.mended):
            listener.warning(words)
        if how.finished:
            report_start(how, folder, listener)
            return
        prepared = prepare(how.run, folder.read_launch_record(), machine, listener)
        prepared.plan_launch(LaunchRecord())  # refuse before any host waits for another
        report_start(how, folder, listener)
        session = HostSession(
            how.run, prepared, folder, place, journal_sync, listener, began, early
        )
        with session.notice.catch_signals():
            outcome = session.take_part()
    if outcome.result != "failed":
        folder.drop_scratch()  # what it holds is in the durable place too
    if outcome.result in ("left", HANDED_OVER):
        journal = SupervisorJournal(folder.journal, clock=now)
        journal.write(LeaderLeft(node=session.node))
        journal.close()
        listener.host_message(outcome.error or "this host has left the run")
    elif outcome.result not in WELL:
        error = RunFailed if outcome.exit_code != PenstockError.exit_code else PenstockError
        raise error(outcome.error)


def _was_stopped(place: MeetingPlace) -> bool:
    """Return whether a person stopped the run since an engine was asked to start this node.

    A meeting place that the other nodes cannot see is refused.
    """
    if token := os.environ.get(meeting.TOKEN):
        try:
            return meeting.was_stopped(place, token)
        except OSError as error:
            raise RunFailed(_unreachable(place, error)) from None
    return False


def _unreachable(place: MeetingPlace, error: OSError) -> str:
    return (
        f"{place}: the hosts of the run meet there, and it cannot be reached: {error}. Give the "
        "same command when it can"
    )


def _pull(journal_sync: JournalSync, place: MeetingPlace) -> None:
    """Fetch the records of the run: other hosts may have begun it."""
    try:
        journal_sync.pull()
    except OSError as error:
        raise RunFailed(_unreachable(place, error)) from None
