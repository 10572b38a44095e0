"""The ranks of a run on all its hosts, for a supervisor that need not know where they are.

    crew.gather()                      waits for the hosts that were asked for
    crew.muster(attempt) -> ranks      chooses hosts, tells them the plan, places the ranks on them
    crew.change() -> why               "" or why the present attempt should save and start again
    crew.dismiss(result)               tells every host how it ended

and the calls of a `Nursery`: `start`, `codes`, `pids`, `stopped`, `wait`, `kill`, `end`, `close`.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.launch.hosts.membership import LOST_CODE, LOST_S, Member, Roster
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.tunnel import Address
from penstock.launch.supervisor.fork_client import GONE_S, Nursery
from penstock.meter.rendezvous import LOOPBACK
from penstock.plan.job.layout import Layout
from penstock.policy import spares

# What of a rank's environment travels; the rest is each host's own, secrets above all.
TRAVELS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "PENSTOCK_ATTEMPT",
    "PENSTOCK_LIFE",
    "PENSTOCK_HOST_RANK",
    "CUBLAS_WORKSPACE_CONFIG",
)


@dataclass(frozen=True)
class Planned:
    """What the planner makes of the hosts that are there: a layout, and plan.json with it."""

    layout: Layout
    plan: dict


@dataclass(kw_only=True)
class Crew(Roster):
    nursery: Nursery  # of this host
    network: HostNetwork  # of this host
    wait_s: float  # cluster.wait
    plan_for: Callable[[list[int]], Planned]  # by the slots of each host
    where: dict[int, tuple[Member, int]] = field(default_factory=dict)  # rank: host, accelerator

    # A new attempt

    def gather(self, waiting: Callable[[], bool], hosts: int) -> None:
        """Wait for so many hosts, as long as the run may, or `waiting` says no."""
        began = time.monotonic()
        while True:
            self.look()
            if spares.enough_hosts(self.hosts(), hosts, time.monotonic() - began, self.wait_s):
                return
            if not waiting():
                return
            self.wait(0.2)

    def muster(self, attempt: int, stopping: Callable[[], bool] = lambda: False) -> int:
        """The hosts of this attempt, its layout in plan.json, and its ranks on them.

        Where what is there cannot hold the model, it waits for more.
        """
        told = ""
        while True:
            self.look()
            members, usable = self._choose()
            try:
                planned = self.plan_for([len(slots) for slots in usable])
                break
            except PenstockError as error:
                if len(members) >= self.nodes or stopping():
                    raise
                if told != str(error):
                    told = str(error)
                    self.told(f"waiting for more hosts: {told}")
                self.wait(0.5)
        self._place(attempt, members, usable, planned)
        return planned.layout.ranks

    def _choose(self) -> tuple[list[Member], list[list[int]]]:
        """The hosts of the next attempt, and the accelerators of each that may work."""
        with self.lock:
            for member in list(self.members.values()):
                if member.leaving and member.link and not member.lost:
                    member.link.send_last({"end": "left", "error": "", "exit_code": 0})
                    member.lost = "it left"
                if member.lost:
                    del self.members[member.node]
            chosen = spares.choose_hosts(self.hosts(), self.nodes, self.me.node)
            members = [self.members[node] for node in chosen]
            if not members:  # all that is left is bad, and better than nothing
                return [self.me], [list(range(self.me.slots))]
            return members, [self.bad.usable(member.node, member.slots) for member in members]

    def _place(
        self, attempt: int, members: list[Member], usable: list[list[int]], planned: Planned
    ) -> None:
        places = [(m, slot) for m, slots in zip(members, usable, strict=True) for slot in slots]
        self.attempt = attempt
        self.where = dict(enumerate(places[: planned.layout.ranks]))
        with self.lock:
            for member in self.members.values():
                member.codes, member.pids, member.stopped = {}, {}, set()
                member.used = tuple(slot for at, slot in self.where.values() if at is member)
        hosts = [{"node": m.node, "ranks": self.ranks_of(m)} for m in members]
        plan = planned.plan | {"hosts": hosts}
        self.folder.write_plan(plan)
        files = {p.name: p.read_text() for p in (self.folder.run_file, self.folder.plan_file)}
        for member in members:
            if member.link:
                hosts_seen, leader = self._seen_from(member, members)
                about = {"hosts": hosts_seen, "own": members.index(member), "leader": leader}
                member.link.send({"attempt": attempt, "files": files, **about})
        own = members.index(self.me) if self.me in members else -1
        self.network.enter(self._seen_from(self.me, members)[0], own)
        self.journal.event("mustered", attempt=attempt, hosts=hosts)

    def ranks_of(self, member: Member) -> list[int]:
        return [rank for rank, (at, _) in self.where.items() if at is member]

    # A nursery's calls

    @property
    def ready(self) -> bool:
        self.look()
        far = [at for at, _ in self.where.values() if at.link]
        return self.nursery.ready and all(member.ready or member.lost for member in far)

    @property
    def lost(self) -> bool:
        return self.nursery.lost

    def start(self, rank: int, env: Mapping[str, str], args: Sequence[str], logs: Path) -> int:
        self.look()
        member, slot = self.where[rank]
        own = {**env, "LOCAL_RANK": str(slot)}
        own["PENSTOCK_HOST_RANK"] = str(self.ranks_of(member).index(rank))
        if member.link is None:
            pid = self.nursery.start(rank, own | self._own_network(), args, logs)
            member.codes[rank] = None
            return pid
        with self.lock:
            member.codes[rank] = LOST_CODE if member.lost else None
        travels = {name: value for name, value in own.items() if name in TRAVELS}
        member.link.send({"start": rank, "attempt": self.attempt, "env": travels})
        return 0

    def _seen_from(self, member: Member, hosts: list[Member]) -> tuple[list[Address], Address]:
        """The tunnels of all hosts of the attempt and of the one that leads, as one reaches them.

        Each host has its own way to the one that leads: the one that it came by.
        """
        here = member.link.own_address if member.link else LOOPBACK
        leader: Address = ([here], self.me.tunnel)
        seen: list[Address] = [
            ([at.link.other_address], at.tunnel) if at.link else leader for at in hosts
        ]
        return seen, leader

    def _own_network(self) -> dict[str, str]:
        links = [m.link for m, _ in self.where.values() if m.link is not None]
        return self.network.env(links[0].own_address if links else LOOPBACK, None)

    def codes(self) -> dict[int, int | None]:
        self.look()
        return self._codes()

    def _codes(self) -> dict[int, int | None]:
        self.me.codes |= {r: c for r, c in self.nursery.codes().items() if r in self.me.codes}
        with self.lock:
            return {rank: member.codes.get(rank) for rank, (member, _) in self.where.items()}

    def pids(self) -> dict[int, int]:
        with self.lock:
            found = dict(self.nursery.pids())
            for member in self.members.values():
                found |= member.pids
            return found

    def stopped(self) -> set[int]:
        with self.lock:
            far = [member.stopped for member in self.members.values()]
            return set(self.nursery.stopped()).union(*far)

    def wait(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self.nursery.fileno(), self.awake], [], [], timeout_s)
        if self.awake in ready:
            os.read(self.awake, 1 << 16)
        self.nursery.wait(0.0)  # takes in what it says

    def kill(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> None:
        ranks = list(ranks)
        self.nursery.kill([r for r in ranks if r in self.me.codes], number)
        for member in list(self.members.values()):
            own = [rank for rank in ranks if rank in member.codes]
            if member.link and own and not member.lost:
                member.link.send({"kill": own, "signal": int(number)})

    def end(self, ranks: Iterable[int] | None = None) -> None:
        """SIGKILL, and returns when they are gone, or their host is."""
        ranks = list(self.where) if ranks is None else list(ranks)
        self.kill(ranks)
        self.nursery.end([rank for rank in ranks if rank in self.me.codes])
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and any(
            code is None for rank, code in self._codes().items() if rank in ranks
        ):
            self.wait(0.2)

    def close(self) -> None:
        """Ends the ranks; the nurseries stay, for whoever leads next."""
        self.end()

    def dismiss(self, result: str, error: str = "", exit_code: int = 0) -> None:
        """Tells every host how it ended, and waits a little until they have heard it."""
        links = [member.link for member in self.members.values() if member.link]
        for link in links:
            link.send_last({"end": result, "error": error, "exit_code": exit_code})
        deadline = time.monotonic() + LOST_S
        while time.monotonic() < deadline and not all(link.closed for link in links):
            time.sleep(0.02)

    def why(self, rank: int) -> str:
        """How a rank came to its end, where its host is the reason."""
        return self.where[rank][0].lost if rank in self.where else ""
