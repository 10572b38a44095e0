"""Hosts under one leader: who works, who waits, who is lost. The processes are fakes."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.launch.hosts.follower import Follower
from penstock.launch.hosts.lease import LeaseRecord
from penstock.launch.hosts.link import connect
from penstock.launch.hosts.membership import LOST_CODE, LeaseLost, Member
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.notice import StopNotice
from penstock.launch.hosts.remote_ranks import HostPlan, RemoteRanks
from penstock.launch.hosts.tunnel import Tunnel
from penstock.launch.supervisor.fence import Fence
from penstock.launch.supervisor.supervisor import RunOutcome
from penstock.ledger.journal.read import JournalLine, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.plan.job.layout import Layout
from penstock.policy.lease import FENCED_S
from penstock.run.folder import RunFolder

LIMIT_S = 60.0
SECRET = "known"


class FakeForkClient:
    """A fork client whose processes are only names."""

    ready, lost = True, False

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.started: dict[int, dict[str, str]] = {}
        self._codes: dict[int, int | None] = {}
        self.signals: list[tuple[list[int], int]] = []

    def fileno(self) -> int:
        return self._read

    def start(self, rank: int, env: dict[str, str], args: object, logs: Path) -> int:
        self.started[rank] = env
        self._codes[rank] = None
        return 1000 + rank

    def exit_codes(self) -> dict[int, int | None]:
        return dict(self._codes)

    def pids(self) -> dict[int, int]:
        return {rank: 1000 + rank for rank, code in self._codes.items() if code is None}

    def stopped_ranks(self) -> set[int]:
        return set()

    def wait(self, timeout_s: float) -> None:
        pass

    def send_signal(self, ranks: list[int], number: int = 9) -> None:
        self.signals.append((list(ranks), number))
        if number == 9:
            self._codes |= {r: -9 for r in ranks if self._codes.get(r, 0) is None}

    def end_ranks(self, ranks: list[int] | None = None) -> None:
        self.send_signal(list(self._codes) if ranks is None else ranks)

    def ends(self, rank: int, code: int) -> None:
        self._codes[rank] = code


@dataclass
class FakeLease:
    """A lease that lasts as long as the test says."""

    record: LeaseRecord = field(default_factory=lambda: LeaseRecord(1, "a", ("127.0.0.1",), 0))
    left: float = FENCED_S
    over: bool = False

    def left_s(self) -> float:
        return self.left


@dataclass
class FollowingHost:
    node: str
    fork_client: FakeForkClient
    follower: Follower
    notice: StopNotice
    ended: list[RunOutcome | None] = field(default_factory=list)


class Stage:
    """A leader that listens, and hosts that follow it."""

    def __init__(self, folder: Path, nodes: int, tunnel: Tunnel) -> None:
        self.root, self.tunnel = folder, tunnel
        self.folder = RunFolder(folder / "a" / "run")
        self.folder.make()
        self.folder.run_file.write_text("name = 'run'")
        self.journal = SupervisorJournal(self.folder.journal)
        self.fork_client, self.lease = FakeForkClient(), FakeLease()
        self.plans: list[list[int]] = []
        self.least = 0  # ranks that the model needs
        self.ranks = RemoteRanks(
            folder=self.folder,
            me=Member("a", 2, "2 cores", tunnel_port=tunnel.port),
            fork_client=self.fork_client,  # type: ignore[arg-type]
            network=self._network(),
            lease=self.lease,  # type: ignore[arg-type]
            fence=Fence(folder / "fence"),
            journal=self.journal,
            announce=lambda words: None,
            nodes=nodes,
            wait_s=LIMIT_S,
            plan_for=self._plan,
            refusal=lambda hello: "too old" if hello.get("old") else "",
        )
        self.server = socket.create_server(("127.0.0.1", 0))
        tunnel.set_service("link", self.server.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()
        self.hosts: list[FollowingHost] = []

    def _network(self) -> HostNetwork:
        return HostNetwork(self.tunnel, SECRET, 1, "cpu")

    def _plan(self, slots: list[int]) -> HostPlan:
        if sum(slots) < self.least:
            raise PenstockError("it does not fit")
        self.plans.append(slots)
        return HostPlan(Layout(replicate=sum(slots)), {"layout": {}, "for": slots})

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            self.ranks.admit(sock, SECRET)

    def follow(self, node: str, slots: int = 2, ready: bool = True, **more: Any) -> FollowingHost:
        before = len(self.events("host_came"))
        hello = {"node": node, "slots": slots, "machine": "2 cores", "tunnel": 2} | more
        link = connect(self.tunnel, ["127.0.0.1"], self.tunnel.port, SECRET, hello)
        assert link is not None
        folder, fork_client = RunFolder(self.root / node / "run"), FakeForkClient()
        fork_client.ready = ready
        folder.make()
        fence = Fence(self.root / f"fence-{node}")
        fence.move(time.monotonic() + LIMIT_S)
        follower = Follower(folder, link, fork_client, fence, self._network())  # type: ignore[arg-type]
        host = FollowingHost(node, fork_client, follower, StopNotice())
        run = threading.Thread(
            target=lambda: host.ended.append(follower.follow(host.notice)), daemon=True
        )
        run.start()
        self.hosts.append(host)
        self.until(lambda: more.get("old") or len(self.events("host_came")) > before)
        return host

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.005)

    def begin(self, attempt: int) -> int:
        ranks = self.ranks.begin_attempt(attempt)
        for rank in range(ranks):
            env = {"RANK": str(rank), "HOME": "/root", "PENSTOCK_ATTEMPT": "x"}
            self.ranks.start(rank, env, ("module", "there", str(attempt)), Path("logs"))
        return ranks

    def events(self, kind: str) -> list[JournalLine]:
        return [e for e in read_events(self.folder.journal / SUPERVISOR) if e.kind == kind]

    def close(self) -> None:
        self.server.close()
        self.ranks.send_outcome("done")


@pytest.fixture(scope="module")
def tunnel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tunnel]:
    made = Tunnel(SECRET, "a", ["127.0.0.1"], {}, tmp_path_factory.mktemp("tunnel"))
    yield made
    made.close()


@pytest.fixture
def stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunnel: Tunnel
) -> Iterator[Callable[[int], Stage]]:
    monkeypatch.setenv("PENSTOCK_MEMORY", str(tmp_path / "memory"))
    made: list[Stage] = []

    def make(nodes: int) -> Stage:
        made.append(Stage(tmp_path, nodes, tunnel))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_ranks_are_started_where_they_belong(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    b = on.follow("b")
    on.ranks.wait_for_hosts(2, lambda: True)
    assert on.begin(0) == 4
    on.until(lambda: set(b.fork_client.started) == {2, 3})
    assert set(on.fork_client.started) == {0, 1}
    env = b.fork_client.started[3]
    assert env["LOCAL_RANK"] == "1"
    assert env["PENSTOCK_HOST_RANK"] == "1"
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert env["PENSTOCK_SHELVES"].count(",") == 1
    assert "HOME" not in env  # each host has its own
    assert env["PENSTOCK_TUNNEL"] == str(on.tunnel.socket)
    assert b.follower.folder.plan_file.read_text() == on.folder.plan_file.read_text()
    assert on.ranks.exit_codes() == dict.fromkeys(range(4))
    on.until(lambda: set(on.ranks.pids()) == {0, 1, 2, 3})


def test_a_wait_for_hosts_can_be_given_up(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    on.ranks.wait_for_hosts(2, lambda: False)
    assert set(on.ranks.members) == {"a"}


def test_too_few_hosts_are_waited_for_and_then_it_is_an_error(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(3)
    on.ranks.wait_s = 0.05
    few = on.ranks.wait_for_hosts(3, lambda: True, least=2)
    assert "1 of 3 nodes came" in str(few)
    assert "begins with 2 or more" in str(few)
    on.ranks.wait_s = 0.1
    on.follow("b")
    on.until(lambda: len(on.ranks.members) == 2)
    assert on.ranks.wait_for_hosts(3, lambda: True, least=2) is None


def test_ranks_wait_until_the_imports_of_every_host_are_done(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    b = on.follow("b", ready=False)
    on.ranks.begin_attempt(0)
    assert not on.ranks.ready
    b.fork_client.ready = True
    on.until(lambda: on.ranks.ready)


def test_how_a_rank_ended_is_known_with_its_last_word(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    on.until(lambda: 3 in b.fork_client.started)
    journal = Journal(b.follower.folder.journal, 0, range(3, 4))
    journal.event("end", result="failed", error="why")
    b.fork_client.ends(3, 1)
    on.until(lambda: on.ranks.exit_codes()[3] == 1)
    [event] = read_events(on.folder.journal / "a0000-r00003.events")
    assert event.payload["error"] == "why"


def test_ends_of_an_attempt_that_is_over_are_not_those_of_the_next(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    on.until(lambda: 3 in b.fork_client.started)
    on.ranks.end_ranks()
    assert on.ranks.exit_codes() == dict.fromkeys(range(4), -9)
    for attempt in range(1, 6):
        b.fork_client.started.clear()
        on.begin(attempt)
        on.until(lambda: 3 in b.fork_client.started)
        assert on.ranks.exit_codes() == dict.fromkeys(range(4))
        on.ranks.end_ranks()
    on.ranks.send_signal([0, 3], 10)
    on.until(lambda: ([3], 10) in b.fork_client.signals)


def test_a_host_that_is_lost_takes_its_ranks_along_and_is_blamed(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    b.follower.link.close()
    on.until(lambda: on.ranks.exit_codes()[2] == LOST_CODE)
    assert on.ranks.exit_codes() == {0: None, 1: None, 2: LOST_CODE, 3: LOST_CODE}
    assert "host b was lost" in on.ranks.host_failure(2)
    assert on.ranks.host_failure(0) == ""
    assert set(on.ranks.pids()) == {0, 1}
    assert on.begin(1) == 2  # on what is left
    assert on.plans == [[2, 2], [2]]
    assert on.ranks.find_regroup_reason() == ""

    b = on.follow("b")
    assert on.ranks.find_regroup_reason() == "b came"
    on.begin(2)
    b.follower.link.close()
    on.until(lambda: on.ranks.exit_codes() and on.events("quarantined"))
    b = on.follow("b")  # a third time it only looks on
    assert on.ranks.find_regroup_reason() == ""
    assert on.begin(3) == 2


def test_a_silent_host_is_lost(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    monkeypatch.setattr("penstock.launch.hosts.membership.LOST_S", 0.3)
    b.follower.link.send = lambda message: None  # type: ignore[method-assign]
    on.until(lambda: on.ranks.exit_codes()[2] == LOST_CODE)
    assert "no beat" in on.ranks.host_failure(2)


def test_a_host_with_notice_leaves_without_blame(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    b.notice.leaving = True
    on.until(lambda: on.ranks.find_regroup_reason() == "b must leave")
    on.ranks.end_ranks()
    assert on.begin(1) == 2
    on.until(lambda: b.ended)
    assert b.ended == [RunOutcome("left")]
    assert not on.events("strike")
    assert not on.events("host_lost")


def test_a_host_beyond_those_asked_for_waits_and_takes_a_place(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    b, c = on.follow("b"), on.follow("c")
    assert on.begin(0) == 4
    assert on.ranks.find_regroup_reason() == ""
    assert not c.fork_client.started
    b.follower.link.close()
    on.until(lambda: on.ranks.exit_codes()[2] == LOST_CODE)
    assert on.begin(1) == 4
    on.until(lambda: set(c.fork_client.started) == {2, 3})


def test_where_the_model_does_not_fit_on_what_is_there_more_is_waited_for(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    on.least = 4
    with pytest.raises(PenstockError, match="does not fit"):
        on.ranks.begin_attempt(0, stopping=lambda: True)
    later = threading.Timer(0.2, on.follow, ("b",))
    later.start()
    assert on.ranks.begin_attempt(0) == 4
    on.least = 5  # more than all that were asked for have
    with pytest.raises(PenstockError, match="does not fit"):
        on.ranks.begin_attempt(1)
    later.join()


def test_a_host_that_does_not_fit_is_told_why(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    b = on.follow("b", old=True)
    on.until(lambda: b.ended)
    assert b.ended == [RunOutcome("refused", "too old", 1)]
    assert set(on.ranks.members) == {"a"}


def test_alone_a_lease_that_runs_out_ends_everything(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    on.begin(0)
    on.lease.left = 0.0
    with pytest.raises(LeaseLost):
        on.ranks.exit_codes()
    on.ranks.end_ranks()  # its ranks can still be ended
    assert on.fork_client.exit_codes() == {0: -9, 1: -9}


def test_with_every_host_at_its_side_an_outage_of_the_place_ends_nothing(
    stage: Callable[[int], Stage],
) -> None:
    on = stage(2)
    b = on.follow("b")
    on.begin(0)
    on.lease.left = -100.0
    assert set(on.ranks.exit_codes().values()) == {None}
    b.follower.link.close()  # now there is one that could lead elsewhere
    with pytest.raises(LeaseLost):
        on.until(lambda: on.ranks.exit_codes() is None)


def test_a_higher_number_ends_it_whoever_follows(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    on.follow("b")
    on.begin(0)
    on.lease.over = True
    with pytest.raises(LeaseLost):
        on.ranks.exit_codes()


def test_what_people_ask_on_another_host_is_passed_on(stage: Callable[[int], Stage]) -> None:
    on = stage(2)
    b = on.follow("b")
    b.follower.folder.request("save")
    on.until(lambda: on.ranks.requests == {"save"})
    assert not b.follower.folder.control_requests()["save"]
    b.notice.stopping = True
    on.until(lambda: on.ranks.requests == {"save", "stop"})


def test_signs_of_life_of_other_hosts_are_seen_here(stage: Callable[[int], Stage]) -> None:
    from penstock.guard.detect import pulse

    on = stage(2)
    b = on.follow("b")
    on.begin(4)
    on.until(lambda: 3 in b.fork_client.started)
    beating = pulse.Pulse(b.follower.folder.scratch, 3, 4)
    beating.at("forward", 17)
    on.until(lambda: (beat := pulse.read_heartbeat(on.folder.scratch, 3)) and beat.step == 17)
    beat = pulse.read_heartbeat(on.folder.scratch, 3)
    assert beat is not None
    assert (beat.attempt, beat.phase) == (4, "forward")
    assert abs(time.monotonic() - beat.t_mono) < LIMIT_S


def test_the_end_is_told_to_all(stage: Callable[[int], Stage]) -> None:
    on = stage(3)
    followers = [on.follow("b"), on.follow("c")]
    on.ranks.send_outcome("done")
    on.until(lambda: all(f.ended for f in followers))
    assert [f.ended for f in followers] == [[RunOutcome("done")]] * 2
