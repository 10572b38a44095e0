"""The ranks of a run on all its hosts, for a supervisor that need not know where they are.

    ranks.wait_for_hosts(count)            waits until so many hosts have joined
    ranks.begin_attempt(attempt) -> count  chooses hosts, sends them the plan, places the ranks
    ranks.find_regroup_reason() -> why     why the attempt should start again on other hosts, or ""
    ranks.send_outcome(result)             tells every host how the run ended

and the calls of `supervisor/rank_processes.py`.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError, RunFailed
from penstock.launch.hosts.membership import LOST_CODE, LOST_S, HostMembership, Member
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.tunnel import TunnelAddress
from penstock.launch.supervisor.fork_client import GONE_S, ForkClient
from penstock.ledger.journal.events import HostsAssigned
from penstock.meter.rendezvous import LOOPBACK
from penstock.plan.job.layout import Layout
from penstock.policy import spares
from penstock.style import format_duration

GIVE_UP = 10  # times cluster.wait: too few hosts came
# Variables of a rank that the leader sends; each host sets the others, above all secrets.
SENT_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "PENSTOCK_ATTEMPT",
    "PENSTOCK_LIFE",
    "PENSTOCK_HOST_RANK",
    "CUBLAS_WORKSPACE_CONFIG",
)


@dataclass(frozen=True)
class HostPlan:
    """The layout for the hosts that are there, and the content of plan.json with it."""

    layout: Layout
    plan: dict


@dataclass(kw_only=True)
class RemoteRanks(HostMembership):
    """The ranks of the present attempt and the hosts that they are on."""

    fork_client: ForkClient  # of this host
    network: HostNetwork  # of this host
    wait_s: float  # cluster.wait
    plan_for: Callable[[list[int]], HostPlan]  # by the slots of each host
    placement: dict[int, tuple[Member, int]] = field(default_factory=dict)  # rank: host, slot

    # A new attempt

    def wait_for_hosts(
        self, count: int, keep_waiting: Callable[[], bool], least: int = 1
    ) -> RunFailed | None:
        """Wait for `count` hosts, for `cluster.wait` at most and while `keep_waiting()`.

        Fewer than `least` are waited for longer; the error says that they did not come either.
        """
        began, announced = time.monotonic(), False
        while True:
            self.poll()
            waited_s, there = time.monotonic() - began, self.hosts()
            if spares.enough_hosts(there, count, waited_s, self.wait_s, least):
                return None
            if waited_s >= GIVE_UP * self.wait_s:
                return RunFailed(
                    f"{len(there)} of {count} nodes came within {format_duration(waited_s)}, and "
                    f"the run begins with {least} or more; `penstock logs` shows what the others "
                    "printed. Ask for fewer with cluster.nodes, or wait longer with cluster.wait"
                )
            if waited_s >= self.wait_s and not announced:
                announced = True
                self.announce(f"{len(there)} of {count} nodes came; waiting for {least} at least")
            if not keep_waiting():
                return None
            self.wait(0.2)

    def begin_attempt(self, attempt: int, stopping: Callable[[], bool] = lambda: False) -> int:
        """Choose the hosts, write plan.json and place the ranks; return the number of ranks.

        It waits for more hosts while those that are there cannot hold the model.
        """
        announced = ""
        while True:
            self.poll()
            members, usable = self._choose_hosts()
            try:
                planned = self.plan_for([len(slots) for slots in usable])
                break
            except PenstockError as error:
                if len(members) >= self.nodes or stopping():
                    raise
                if announced != str(error):
                    announced = str(error)
                    self.announce(f"waiting for more hosts: {announced}")
                self.wait(0.5)
        self._place(attempt, members, usable, planned)
        return planned.layout.ranks

    def _choose_hosts(self) -> tuple[list[Member], list[list[int]]]:
        """Return the hosts of the next attempt, and the accelerators of each that may work."""
        with self.lock:
            for member in list(self.members.values()):
                if member.leaving and member.link and not member.lost:
                    member.link.send_last({"end": "left", "error": "", "exit_code": 0})
                    member.lost = "it left"
                if member.lost:
                    del self.members[member.node]
            chosen = spares.choose_hosts(self.hosts(), self.nodes, self.me.node)
            members = [self.members[node] for node in chosen]
            if not members:  # only quarantined hosts are left, which is better than nothing
                return [self.me], [list(range(self.me.slots))]
            usable = [self.quarantined.usable(member.node, member.slots) for member in members]
            return members, usable

    def _place(
        self, attempt: int, members: list[Member], usable: list[list[int]], planned: HostPlan
    ) -> None:
        """Place the ranks, write plan.json and send the attempt to every host."""
        places = [(m, slot) for m, slots in zip(members, usable, strict=True) for slot in slots]
        self.attempt = attempt
        self.placement = dict(enumerate(places[: planned.layout.ranks]))
        with self.lock:
            for member in self.members.values():
                member.exit_codes, member.pids, member.stopped = {}, {}, set()
                member.used_slots = tuple(
                    slot for at, slot in self.placement.values() if at is member
                )
                member.idle = member in members and not member.used_slots
        hosts = [{"node": m.node, "ranks": self.ranks_of(m)} for m in members]
        plan = planned.plan | {"hosts": hosts}
        self.folder.write_plan(plan)
        files = {p.name: p.read_text() for p in (self.folder.run_file, self.folder.plan_file)}
        for member in members:
            if member.link:
                tunnels, leader = self._tunnels_from(member, members)
                network = {"hosts": tunnels, "own": members.index(member), "leader": leader}
                member.link.send({"attempt": attempt, "files": files, **network})
        own = members.index(self.me) if self.me in members else -1
        self.network.begin_attempt(self._tunnels_from(self.me, members)[0], own)
        self.journal.write(HostsAssigned(attempt=attempt, hosts=hosts))

    def ranks_of(self, member: Member) -> list[int]:
        return [rank for rank, (at, _) in self.placement.items() if at is member]

    # The calls of RankProcesses

    @property
    def ready(self) -> bool:
        self.poll()
        remote = [member for member, _ in self.placement.values() if member.link]
        return self.fork_client.ready and all(member.ready or member.lost for member in remote)

    @property
    def lost(self) -> bool:
        return self.fork_client.lost

    def start(self, rank: int, env: Mapping[str, str], args: Sequence[str], logs: Path) -> int:
        self.poll()
        member, slot = self.placement[rank]
        own = {**env, "LOCAL_RANK": str(slot)}
        own["PENSTOCK_HOST_RANK"] = str(self.ranks_of(member).index(rank))
        if member.link is None:
            pid = self.fork_client.start(rank, own | self._own_network(), args, logs)
            member.exit_codes[rank] = None
            return pid
        with self.lock:
            member.exit_codes[rank] = LOST_CODE if member.lost else None
        sent = {name: value for name, value in own.items() if name in SENT_VARIABLES}
        member.link.send({"start": rank, "attempt": self.attempt, "env": sent})
        return 0

    def _tunnels_from(
        self, member: Member, hosts: list[Member]
    ) -> tuple[list[TunnelAddress], TunnelAddress]:
        """Return the tunnels of all hosts and of the leader, at the addresses for one member.

        Each host reaches the leader by the address that it connected to.
        """
        here = member.link.own_address if member.link else LOOPBACK
        leader: TunnelAddress = ([here], self.me.tunnel_port)
        tunnels: list[TunnelAddress] = [
            ([at.link.other_address], at.tunnel_port) if at.link else leader for at in hosts
        ]
        return tunnels, leader

    def _own_network(self) -> dict[str, str]:
        links = [member.link for member, _ in self.placement.values() if member.link is not None]
        return self.network.env(links[0].own_address if links else LOOPBACK, None)

    def exit_codes(self) -> dict[int, int | None]:
        self.poll()
        return self._exit_codes()

    def _exit_codes(self) -> dict[int, int | None]:
        """Return the exit codes even where this host may not lead any more."""
        own = self.me.exit_codes
        own |= {rank: code for rank, code in self.fork_client.exit_codes().items() if rank in own}
        with self.lock:
            return {
                rank: member.exit_codes.get(rank) for rank, (member, _) in self.placement.items()
            }

    def pids(self) -> dict[int, int]:
        with self.lock:
            pids = dict(self.fork_client.pids())
            for member in self.members.values():
                pids |= member.pids
            return pids

    def stopped_ranks(self) -> set[int]:
        with self.lock:
            remote = [member.stopped for member in self.members.values()]
            return set(self.fork_client.stopped_ranks()).union(*remote)

    def wait(self, timeout_s: float) -> None:
        sources = [self.fork_client.fileno(), self.wake_read]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self.wake_read in ready:
            os.read(self.wake_read, 1 << 16)
        self.fork_client.wait(0.0)  # handles the messages of the fork server

    def send_signal(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> None:
        ranks = list(ranks)
        self.fork_client.send_signal([r for r in ranks if r in self.me.exit_codes], number)
        for member in list(self.members.values()):
            own = [rank for rank in ranks if rank in member.exit_codes]
            if member.link and own and not member.lost:
                member.link.send({"kill": own, "signal": int(number)})

    def end_ranks(self, ranks: Iterable[int] | None = None) -> None:
        """Kill ranks and return when they are gone, or their host is."""
        ranks = list(self.placement) if ranks is None else list(ranks)
        self.send_signal(ranks)
        self.fork_client.end_ranks([rank for rank in ranks if rank in self.me.exit_codes])
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and any(
            code is None for rank, code in self._exit_codes().items() if rank in ranks
        ):
            self.wait(0.2)

    def close(self) -> None:
        """End the ranks; the fork servers stay for the next leader."""
        self.end_ranks()

    def send_outcome(self, result: str, error: str = "", exit_code: int = 0) -> None:
        """Tell every host how the run ended, and wait a little until they have read it."""
        links = [member.link for member in self.members.values() if member.link]
        for link in links:
            link.send_last({"end": result, "error": error, "exit_code": exit_code})
        deadline = time.monotonic() + LOST_S
        while time.monotonic() < deadline and not all(link.closed for link in links):
            time.sleep(0.02)

    def host_failure(self, rank: int) -> str:
        """Return how the host of a rank was lost; "" where it was not."""
        return self.placement[rank][0].lost if rank in self.placement else ""
