"""What the supervisor of several hosts adds: making room, hearing sentinels, strikes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.hosts.membership import Member
from penstock.launch.hosts.supervisor import MultiHostSupervisor, NewLines, read_strikes
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.policy import quarantine, restart
from penstock.policy.quarantine import HardwarePart
from penstock.run.folder import RunFolder


@dataclass
class FakeRemoteRanks:
    """Remote ranks that say what the test wants."""

    attempt: int = 0
    reason: str = ""
    requests: set[str] = field(default_factory=set)
    faults: list[quarantine.HardwareFault] = field(default_factory=list)
    placement: dict[int, tuple[Member, int]] = field(default_factory=dict)

    def find_regroup_reason(self) -> str:
        return self.reason

    def announce(self, words: str) -> None:
        pass

    def count_fault(self, fault: quarantine.HardwareFault) -> None:
        self.faults.append(fault)

    def begin_attempt(self, attempt: int, stopping: Any) -> int:
        return 4


class NoJournalSync:
    def push_soon(self) -> None:
        pass


@pytest.fixture
def supervisor(tmp_path: Path) -> MultiHostSupervisor:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return MultiHostSupervisor(
        folder=folder,
        journal=SupervisorJournal(folder.journal),
        ranks=4,
        threads=1,
        restarts_allowed=3,
        timeout_s=30.0,
        listener=Listener(),
        replanner=None,  # type: ignore[arg-type]
        remote_ranks=FakeRemoteRanks(),  # type: ignore[arg-type]
        journal_sync=NoJournalSync(),  # type: ignore[arg-type]
    )


def remote_ranks(supervisor: MultiHostSupervisor) -> FakeRemoteRanks:
    assert isinstance(supervisor.remote_ranks, FakeRemoteRanks)
    return supervisor.remote_ranks


STOPPED = restart.AttemptEnd(("stopped",) * 4, 10)
DONE = restart.AttemptEnd(("done",) * 4, 10)


def test_hosts_that_come_or_go_make_the_ranks_stop_and_start_again(
    supervisor: MultiHostSupervisor,
) -> None:
    supervisor.poll_hosts()
    assert not supervisor.folder.control_requests()["stop"]
    remote_ranks(supervisor).reason = "b came"
    supervisor.poll_hosts()
    assert supervisor.folder.control_requests()["stop"]
    assert supervisor.continues(STOPPED)
    assert not supervisor.folder.control_requests()["stop"]
    supervisor.begin_attempt(1)
    assert not supervisor.continues(STOPPED)  # the next stop is somebody else's


def test_a_run_that_was_done_meanwhile_is_done(supervisor: MultiHostSupervisor) -> None:
    remote_ranks(supervisor).reason = "b came"
    supervisor.poll_hosts()
    assert not supervisor.continues(DONE)


def test_a_person_who_stops_the_run_meanwhile_is_heard(supervisor: MultiHostSupervisor) -> None:
    remote_ranks(supervisor).reason = "b came"
    supervisor.poll_hosts()
    supervisor.folder.request("stop")
    assert not supervisor.continues(STOPPED)


def test_what_people_on_other_hosts_ask_becomes_a_wish(supervisor: MultiHostSupervisor) -> None:
    remote_ranks(supervisor).requests = {"save"}
    supervisor.poll_hosts()
    assert supervisor.folder.control_requests() == {"save": True, "stop": False}
    remote_ranks(supervisor).requests = {"stop"}
    supervisor.poll_hosts()
    assert supervisor.stop_requested
    remote_ranks(supervisor).reason = "b came"
    supervisor.poll_hosts()
    assert not supervisor.regroup_reason  # it stops: nobody needs room any more


def layout(supervisor: MultiHostSupervisor, **sizes: int) -> None:
    supervisor.folder.plan_file.write_text(json.dumps({"layout": sizes}))


def test_a_replica_that_computes_wrong_counts_against_its_accelerator(
    supervisor: MultiHostSupervisor,
) -> None:
    a, b = Member("a", 2, ""), Member("b", 2, "")
    remote_ranks(supervisor).placement = {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (b, 1)}
    layout(supervisor, replicate=4, shard=1, microbatch=1)
    with Journal(supervisor.folder.journal, 0, range(1)) as journal:
        journal.event("replay_differs", step=5, pairs=[[1, 2]], replicas=[1, 2])  # one of two
        journal.event("replica_at_fault", step=5, replicas=[3], certain=False)
        journal.event("replay_differs", step=9, pairs=[[2, 3], [1, 2]], replicas=[2])
    supervisor.poll_hosts()
    [fault] = remote_ranks(supervisor).faults
    assert (fault.node, fault.accelerator, fault.kind) == ("b", 0, "differs")
    supervisor.sentinels_s = 0.0
    supervisor.poll_hosts()
    assert len(remote_ranks(supervisor).faults) == 1  # each once


def test_of_a_replica_on_several_accelerators_of_one_host_the_host_is_blamed(
    supervisor: MultiHostSupervisor,
) -> None:
    a, b = Member("a", 2, ""), Member("b", 2, "")
    remote_ranks(supervisor).placement = {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (b, 1)}
    layout(supervisor, replicate=2, shard=2, microbatch=1)
    with Journal(supervisor.folder.journal, 0, range(1)) as journal:
        journal.event("replica_at_fault", step=5, replicas=[1], certain=True)
    supervisor.poll_hosts()
    [fault] = remote_ranks(supervisor).faults
    assert (fault.node, fault.accelerator) == ("b", None)


def test_strikes_are_remembered_by_whoever_leads_next(supervisor: MultiHostSupervisor) -> None:
    supervisor.journal.event("strike", node="b", accelerator=None, reason="lost")
    supervisor.journal.event("strike", node="c", accelerator=2, reason="ECC error")
    supervisor.journal.event("strike", node="b", accelerator=None, reason="lost")
    state = read_strikes(read_events(supervisor.folder.journal / SUPERVISOR))
    assert state.out == (HardwarePart("b"),)
    _, out = quarantine.decide(
        state, quarantine.HardwareFault("c", 2, "ECC error", supervisor.journal.clock(), "rank")
    )
    assert out == HardwarePart("c", 2)


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path, lines = tmp_path / "file", NewLines()
    assert lines.read(path) == []
    path.write_bytes(b"one\ntw")
    assert lines.read(path) == [b"one"]
    path.write_bytes(b"one\ntwo\nthree\n")
    assert lines.read(path) == [b"two", b"three"]
    assert lines.read(path) == []
