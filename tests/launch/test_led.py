"""What the supervisor of several hosts adds: making room, hearing sentinels, strikes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.hosts.membership import Member
from penstock.launch.hosts.supervisor import Led, Lines, strikes
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.policy import quarantine, restart
from penstock.policy.quarantine import HardwarePart
from penstock.run.folder import RunFolder


@dataclass
class PlayedCrew:
    """A crew that says what the test wants."""

    attempt: int = 0
    why_change: str = ""
    asked: set[str] = field(default_factory=set)
    blamed: list[quarantine.HardwareFault] = field(default_factory=list)
    where: dict[int, tuple[Member, int]] = field(default_factory=dict)

    def change(self) -> str:
        return self.why_change

    def told(self, words: str) -> None:
        pass

    def blame(self, fault: quarantine.HardwareFault) -> None:
        self.blamed.append(fault)

    def muster(self, attempt: int, stopping: Any) -> int:
        return 4


class NoCarrier:
    def soon(self) -> None:
        pass


@pytest.fixture
def led(tmp_path: Path) -> Led:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return Led(
        folder=folder,
        journal=SupervisorJournal(folder.journal),
        ranks=4,
        threads=1,
        allowed=3,
        timeout_s=30.0,
        listener=Listener(),
        replanner=None,  # type: ignore[arg-type]
        crew=PlayedCrew(),  # type: ignore[arg-type]
        carrier=NoCarrier(),  # type: ignore[arg-type]
    )


def crew(led: Led) -> PlayedCrew:
    assert isinstance(led.crew, PlayedCrew)
    return led.crew


STOPPED = restart.AttemptEnd(("stopped",) * 4, 10)
DONE = restart.AttemptEnd(("done",) * 4, 10)


def test_hosts_that_come_or_go_make_the_ranks_stop_and_start_again(led: Led) -> None:
    led.look()
    assert not led.folder.control_requests()["stop"]
    crew(led).why_change = "b came"
    led.look()
    assert led.folder.control_requests()["stop"]
    assert led.goes_on(STOPPED)
    assert not led.folder.control_requests()["stop"]
    led.muster(1)
    assert not led.goes_on(STOPPED)  # the next stop is somebody else's


def test_a_run_that_was_done_meanwhile_is_done(led: Led) -> None:
    crew(led).why_change = "b came"
    led.look()
    assert not led.goes_on(DONE)


def test_a_person_who_stops_the_run_meanwhile_is_heard(led: Led) -> None:
    crew(led).why_change = "b came"
    led.look()
    led.folder.wish("stop")
    assert not led.goes_on(STOPPED)


def test_what_people_on_other_hosts_ask_becomes_a_wish(led: Led) -> None:
    crew(led).asked = {"save"}
    led.look()
    assert led.folder.control_requests() == {"save": True, "stop": False}
    crew(led).asked = {"stop"}
    led.look()
    assert led.stop_seen
    crew(led).why_change = "b came"
    led.look()
    assert not led.changing  # it stops: nobody needs room any more


def layout(led: Led, **sizes: int) -> None:
    led.folder.plan_file.write_text(json.dumps({"layout": sizes}))


def test_a_replica_that_computes_wrong_counts_against_its_accelerator(led: Led) -> None:
    a, b = Member("a", 2, ""), Member("b", 2, "")
    crew(led).where = {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (b, 1)}
    layout(led, replicate=4, shard=1, microbatch=1)
    with Journal(led.folder.journal, 0, range(1)) as journal:
        journal.event("replay_differs", step=5, pairs=[[1, 2]], replicas=[1, 2])  # one of two
        journal.event("replica_at_fault", step=5, replicas=[3], certain=False)
        journal.event("replay_differs", step=9, pairs=[[2, 3], [1, 2]], replicas=[2])
    led.look()
    [fault] = crew(led).blamed
    assert (fault.node, fault.accelerator, fault.kind) == ("b", 0, "differs")
    led.hear_s = 0.0
    led.look()
    assert len(crew(led).blamed) == 1  # each once


def test_of_a_replica_on_several_accelerators_of_one_host_the_host_is_blamed(led: Led) -> None:
    a, b = Member("a", 2, ""), Member("b", 2, "")
    crew(led).where = {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (b, 1)}
    layout(led, replicate=2, shard=2, microbatch=1)
    with Journal(led.folder.journal, 0, range(1)) as journal:
        journal.event("replica_at_fault", step=5, replicas=[1], certain=True)
    led.look()
    [fault] = crew(led).blamed
    assert (fault.node, fault.accelerator) == ("b", None)


def test_strikes_are_remembered_by_whoever_leads_next(led: Led) -> None:
    led.journal.event("strike", node="b", accelerator=None, reason="lost")
    led.journal.event("strike", node="c", accelerator=2, reason="ECC error")
    led.journal.event("strike", node="b", accelerator=None, reason="lost")
    state = strikes(read_events(led.folder.journal / SUPERVISOR))
    assert state.out == (HardwarePart("b"),)
    _, out = quarantine.decide(
        state, quarantine.HardwareFault("c", 2, "ECC error", led.journal.clock(), "rank")
    )
    assert out == HardwarePart("c", 2)


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path, lines = tmp_path / "file", Lines()
    assert lines.more(path) == []
    path.write_bytes(b"one\ntw")
    assert lines.more(path) == [b"one"]
    path.write_bytes(b"one\ntwo\nthree\n")
    assert lines.more(path) == [b"two", b"three"]
    assert lines.more(path) == []
