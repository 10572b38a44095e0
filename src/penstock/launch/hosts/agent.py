"""A host that follows: it runs ranks when the host that leads says so, and tells how they do.

The agent decides nothing. It beats once a second; the answer says how long the leader's lease still
holds, counted from the moment this host asked, and moves the fence of its ranks. When the line is
lost its ranks end, since whoever leads next starts others.
"""

import os
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.files import PRIVATE, write_atomic
from penstock.guard.detect import pulse
from penstock.launch.hosts.link import Link, Message
from penstock.launch.hosts.mirror import Tail
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.supervisor import addresses
from penstock.launch.supervisor.fence import Fence
from penstock.launch.supervisor.fork_client import RANK, Nursery
from penstock.run.folder import RunFolder

BEAT_S = 1.0
POLL_S = 0.1
TELL_S = 0.2  # between pieces of the ranks' files


@dataclass(frozen=True)
class End:
    """What the leader said last: how the run ended, or that another host is to lead."""

    result: str
    error: str = ""
    exit_code: int = 0


class Notice(Protocol):
    """What this host was told from outside: to leave the run, or to stop it."""

    @property
    def leaving(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...


class Agent:
    def __init__(
        self, folder: RunFolder, link: Link, nursery: Nursery, fence: Fence, network: HostNetwork
    ) -> None:
        self.folder, self.link, self.nursery, self.fence = folder, link, nursery, fence
        self.network, self._env = network, dict[str, str]()
        self.shared = self.shared_memory = False
        self._inbox: deque[Message] = deque()
        self._awake, self._wake = os.pipe()
        self._tail = Tail(folder.path, -1)
        self._pulses: dict[int, int] = {}
        self._ended: set[int] = set()  # ranks whose end was told
        self._stopped: list[int] = []
        self._told: set[str] = set()
        self._told_s = 0.0
        self._end: End | None = None

    def follow(self, notice: Notice) -> End | None:
        """Until the leader says the end, or is lost: None."""
        self.link.read_with(self._take)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        try:
            while self._end is None and not self.link.closed:
                select.select([self.nursery.fileno(), self._awake], [], [], POLL_S)
                self._obey()
                self._report()
                self._pass_on(notice)
            self._obey()  # what was said before the line was closed
        finally:
            self.nursery.end()
            self.link.close()
        return self._end

    def _take(self, message: Message) -> None:
        """On the thread of the line: beats are answered whatever else goes on."""
        if "beat" in message:
            self.fence.move(message["beat"] + message["left_s"])
        else:
            self._inbox.append(message)
            os.write(self._wake, b"x")

    def _beat(self) -> None:
        while not self.link.closed:
            self.link.send({"beat": time.monotonic()})
            time.sleep(BEAT_S)
            if self.fence.passed:  # no answer came for too long
                self.link.close()

    def _obey(self) -> None:
        if select.select([self._awake], [], [], 0)[0]:
            os.read(self._awake, 1 << 16)
        while self._inbox:
            order = self._inbox.popleft()
            if "start" in order:
                self._start(order)
            elif "kill" in order:
                self.nursery.kill(order["kill"], order["signal"])
            elif "attempt" in order:
                self._prepare(order)
            elif "welcome" in order:
                self.shared = _marked(self.folder.path, order["welcome"])
                self.shared_memory = _marked(self.folder.scratch, order["welcome"])
            elif "end" in order:
                self._end = End(order["end"], order["error"], order["exit_code"])

    def _prepare(self, order: Message) -> None:
        """A new attempt: what the ranks will read, and whose files are to be told from now on."""
        self.nursery.end()
        self._report()
        self._tail = Tail(self.folder.path, order["attempt"], addresses.node())
        self._pulses = {}
        if not self.shared:
            self.folder.make()
            for name, text in order["files"].items():
                write_atomic(self.folder.path / Path(name).name, text, PRIVATE)
        self.folder.make_scratch()
        self.network.enter([(names, port) for names, port in order["hosts"]], order["own"])
        addresses_of_leader, port = order["leader"]
        self._env = self.network.env(self.link.own_address, (addresses_of_leader, port))

    def _start(self, order: Message) -> None:
        rank, attempt = order["start"], order["attempt"]
        logs = self.folder.logs / f"attempt-{attempt}"
        arguments = (RANK, str(self.folder.path), str(attempt))
        env = order["env"] | self._env
        self._ended.discard(rank)
        pid = self.nursery.start(rank, env, arguments, logs)
        self.link.send({"started": rank, "pid": pid, "attempt": attempt})

    def _report(self) -> None:
        """Files first: whoever hears that a rank has ended finds its last word already there."""
        codes = self.nursery.codes()
        if self.nursery.ready and "ready" not in self._told:
            self._told.add("ready")
            self.link.send({"ready": True})
        ended = {r: c for r, c in codes.items() if c is not None and r not in self._ended}
        if not ended and time.monotonic() - self._told_s < TELL_S:
            return
        self._told_s = time.monotonic()
        if not self.shared:
            for piece in self._tail.more():
                self.link.send(piece.to_json())
        if not self.shared_memory:
            self._report_pulses()
        stopped = sorted(self.nursery.stopped())
        if stopped != self._stopped:
            self._stopped = stopped
            self.link.send({"stopped": stopped, "attempt": self._tail.attempt})
        if ended:
            self._ended |= set(ended)
            self.link.send({"ended": ended, "attempt": self._tail.attempt})

    def _report_pulses(self) -> None:
        beats: dict[int, list[object]] = {}
        for rank in self.nursery.pids():
            beat = pulse.read_heartbeat(self.folder.scratch, rank)
            if beat and self._pulses.get(rank) != beat.count:
                self._pulses[rank] = beat.count
                age_s = time.monotonic() - beat.t_mono
                beats[rank] = [beat.count, beat.attempt, beat.pid, beat.step, beat.phase, age_s]
        if beats:
            self.link.send({"pulses": beats})

    def _pass_on(self, notice: Notice) -> None:
        """What people ask for on this host."""
        asked = {
            "leave": notice.leaving,
            "stop": notice.stopping or (not self.shared and self.folder.control_requests()["stop"]),
            "save": not self.shared and self.folder.control_requests()["save"],
        }
        for what, wanted in asked.items():
            if wanted and what not in self._told:
                self.link.send({"asked": what})
                self._told.add(what)
                if what == "save":
                    self.folder.acknowledge("save")
                    self._told.remove("save")


def _marked(folder: Path, mark: str) -> bool:
    """Whether the leader's folder of this run is this one."""
    return (folder / mark).exists()
