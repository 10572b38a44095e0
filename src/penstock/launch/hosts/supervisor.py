"""The supervisor of a run on several hosts: the same as of one, with hosts that come and go.

A host that comes or must leave is a reason to save, stop the ranks and start them again on others;
that is not a fault, and no step is lost by it. A host that is lost is one.
"""

import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from penstock.launch.hosts.carry import Carrier
from penstock.launch.hosts.remote_ranks import Crew
from penstock.launch.supervisor.fork_client import Nursery
from penstock.launch.supervisor.supervisor import Local, Outcome
from penstock.ledger.journal.read import Event
from penstock.ledger.journal.records import file_name
from penstock.meter.clock import now
from penstock.plan.job.layout import Layout
from penstock.policy import quarantine, restart
from penstock.policy.quarantine import Kind

HANDED_OVER = "handed over"
SENTINELS = (b"replay_differs", b"replica_at_fault")
HEAR_S = 2.0


@dataclass
class Lines:
    """Whole lines of a file that grows, each once."""

    at: int = 0

    def more(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self.at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self.at += len(whole) + len(newline)
        return whole.splitlines()


@dataclass(kw_only=True)
class Led(Local):
    crew: Crew
    carrier: Carrier
    changing: str = ""  # why the attempt that runs is to make room for another
    told: Lines = field(default_factory=Lines)  # what the rank that speaks for all has on record
    hear_s: float = 0.0  # when to look there again

    def run(self) -> Outcome:
        """As of one host; told to leave, this one saves and leaves the run to the others."""
        outcome = super().run()
        told = self.stop_signal == signal.SIGTERM
        if outcome.result == "stopped" and told and (others := self.crew.others):
            return Outcome(HANDED_OVER, f"this host leaves; {' and '.join(others)} go on")
        return outcome

    def make_nursery(self) -> Nursery:
        self.crew.network.tunnel.set_service("store", self.store.port)
        return cast(Nursery, self.crew)  # it has the same calls

    def muster(self, attempt: int) -> None:
        self.changing, self.told = "", Lines()
        self.ranks = self.crew.muster(attempt, stopping=lambda: self.stop_seen)
        self.carrier.soon()

    def look(self) -> None:
        """Whether people on other hosts want something, and whether hosts came or must leave."""
        for what in sorted(self.crew.asked):
            self.crew.asked.remove(what)
            self.folder.wish(what)
            self.stop_seen |= what == "stop"
            self.journal.event("asked_by_host", what=what)
        self._hear_sentinels()
        if self.changing or self.stop_seen or self.limit_told:
            return
        self.changing = self.crew.change()
        if self.changing:
            self.journal.event("regroup", reason=self.changing)
            self.crew.told(f"{self.changing}: saving, then starting again")
            self.folder.wish("regroup")

    def _hear_sentinels(self) -> None:
        """A replica that was found to compute wrong counts against what it ran on."""
        if time.monotonic() < self.hear_s:
            return
        self.hear_s = time.monotonic() + HEAR_S
        path = self.folder.journal / file_name(self.crew.attempt, range(1), "events")
        for line in self.told.more(path):
            if not any(kind in line for kind in SENTINELS):
                continue  # nearly all: the rest are not even parsed
            event = json.loads(line)
            wrong, sure = event.get("replicas"), event.get("certain", True)
            if event["kind"].encode() in SENTINELS and sure and len(wrong or []) == 1:
                self._blame_replica(wrong[0], f"{event['kind']} at step {event['step']}")

    def _blame_replica(self, replica: int, reason: str) -> None:
        """Its accelerator; of a replica on several, the host if it is on one."""
        layout = Layout(**self.folder.read_plan()["layout"])
        inner = layout.ranks // layout.pipeline // layout.replicate
        ranks = [
            rank for rank in range(layout.ranks) if rank // inner % layout.replicate == replica
        ]
        places = {(at.node, slot) for at, slot in (self.crew.where[rank] for rank in ranks)}
        nodes = {node for node, _ in places}
        if len(nodes) == 1:
            slot = next(iter(places))[1] if len(places) == 1 else None
            node = next(iter(nodes))
            self.crew.blame(quarantine.HardwareFault(node, slot, reason, now(), "differs"))

    def goes_on(self, ended: restart.AttemptEnd) -> bool:
        """Ranks that stopped to make room. One that was done all the same is done."""
        self.folder.acknowledge("regroup")
        stops = self.stop_seen or self.limit_told or self.folder.control_requests()["stop"]
        return bool(self.changing) and "stopped" in ended.results and not stops

    def why_lost(self, rank: int) -> str:
        return self.crew.why(rank)

    def blame(self, rank: int, reason: str) -> None:
        """A rank that failed: against its accelerator, where the words say so."""
        member, slot = self.crew.where[rank]
        if not member.lost:
            self.crew.blame(quarantine.HardwareFault(member.node, slot, reason, now(), "rank"))


def strikes(journal: list[Event]) -> quarantine.QuarantineState:
    """What earlier leaders of the run have on record against its hosts."""
    state = quarantine.QuarantineState()
    for event in journal:
        if event.kind == "strike":
            slot = event.whole("accelerator")
            kind: Kind = "lost" if slot is None else "differs"
            fault = quarantine.HardwareFault(
                str(event.payload["node"]), slot, str(event.payload["reason"]), event.t, kind
            )
            state, _ = quarantine.decide(state, fault)
    return state
