"""A host that follows: it runs ranks when the leader says so, and reports how they do.

A follower decides nothing. It sends a beat once a second. The answer says how long the leader's
lease still holds, counted from the moment of the beat, and moves the fence of this host's ranks.
When the connection is lost its ranks end, because the next leader starts others.
"""

import os
import select
import threading
import time
from collections import deque
from pathlib import Path

from penstock.files import PRIVATE, write_atomic
from penstock.guard.detect import pulse
from penstock.launch.hosts.link import Link, Message
from penstock.launch.hosts.mirror import GrowingFiles
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.notice import StopNotice
from penstock.launch.supervisor import addresses
from penstock.launch.supervisor.fence import Fence
from penstock.launch.supervisor.fork_client import RANK, ForkClient
from penstock.launch.supervisor.supervisor import RunOutcome
from penstock.run.folder import RunFolder

BEAT_S = 1.0
POLL_S = 0.1
REPORT_S = 0.2  # between two reports of what the ranks wrote


class Follower:
    """This host's side of its connection to the leader."""

    def __init__(
        self,
        folder: RunFolder,
        link: Link,
        fork_client: ForkClient,
        fence: Fence,
        network: HostNetwork,
    ) -> None:
        self.folder, self.link, self.fork_client, self.fence = folder, link, fork_client, fence
        self.network, self._env = network, dict[str, str]()
        self.shared_disk = self.shared_memory = False  # with the leader
        self._inbox: deque[Message] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._files = GrowingFiles(folder.path, -1)
        self._pulses: dict[int, int] = {}  # rank: the count that was sent last
        self._ended: set[int] = set()  # ranks whose end was reported
        self._stopped: list[int] = []
        self._sent: set[str] = set()  # facts that are reported once
        self._reported_s = 0.0
        self._outcome: RunOutcome | None = None

    def follow(self, notice: StopNotice) -> RunOutcome | None:
        """Follow until the leader says how the run ended; return None when the leader is lost."""
        self.link.read_with(self._receive)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        try:
            while self._outcome is None and not self.link.closed:
                select.select([self.fork_client.fileno(), self._wake_read], [], [], POLL_S)
                self._handle_orders()
                self._report()
                self._forward_requests(notice)
            self._handle_orders()  # those that came before the connection was closed
        finally:
            self.fork_client.end_ranks()
            self.link.close()
        return self._outcome

    def _receive(self, message: Message) -> None:
        """Take a message, on the thread of the link: beats count whatever else goes on."""
        if "beat" in message:
            self.fence.move(message["beat"] + message["left_s"])
        else:
            self._inbox.append(message)
            os.write(self._wake_write, b"x")

    def _beat(self) -> None:
        while not self.link.closed:
            self.link.send({"beat": time.monotonic()})
            time.sleep(BEAT_S)
            if self.fence.passed:  # no answer came for too long
                self.link.close()

    def _handle_orders(self) -> None:
        if select.select([self._wake_read], [], [], 0)[0]:
            os.read(self._wake_read, 1 << 16)
        while self._inbox:
            order = self._inbox.popleft()
            if "start" in order:
                self._start_rank(order)
            elif "kill" in order:
                self.fork_client.send_signal(order["kill"], order["signal"])
            elif "attempt" in order:
                self._begin_attempt(order)
            elif "welcome" in order:
                self.shared_disk = _has_mark(self.folder.path, order["welcome"])
                self.shared_memory = _has_mark(self.folder.scratch, order["welcome"])
            elif "end" in order:
                self._outcome = RunOutcome(order["end"], order["error"], order["exit_code"])

    def _begin_attempt(self, order: Message) -> None:
        """End the attempt before, write the files that ranks read, and enter the new network."""
        self.fork_client.end_ranks()
        self._report()
        self._files = GrowingFiles(self.folder.path, order["attempt"], addresses.node())
        self._pulses = {}
        if not self.shared_disk:
            self.folder.make()
            for name, text in order["files"].items():
                write_atomic(self.folder.path / Path(name).name, text, PRIVATE)
        self.folder.make_scratch()
        self.network.begin_attempt([(names, port) for names, port in order["hosts"]], order["own"])
        leader_addresses, port = order["leader"]
        self._env = self.network.env(self.link.own_address, (leader_addresses, port))

    def _start_rank(self, order: Message) -> None:
        rank, attempt = order["start"], order["attempt"]
        logs = self.folder.logs / f"attempt-{attempt}"
        arguments = (RANK, str(self.folder.path), str(attempt))
        env = order["env"] | self._env
        self._ended.discard(rank)
        pid = self.fork_client.start(rank, env, arguments, logs)
        self.link.send({"started": rank, "pid": pid, "attempt": attempt})

    def _report(self) -> None:
        """Report what the ranks did since the last report.

        Files go first: when the leader hears that a rank has ended, its last record is there.
        """
        codes = self.fork_client.exit_codes()
        if self.fork_client.ready and "ready" not in self._sent:
            self._sent.add("ready")
            self.link.send({"ready": True})
        ended = {r: c for r, c in codes.items() if c is not None and r not in self._ended}
        if not ended and time.monotonic() - self._reported_s < REPORT_S:
            return
        self._reported_s = time.monotonic()
        if not self.shared_disk:
            for chunk in self._files.unsent():
                self.link.send(chunk.to_json())
        if not self.shared_memory:
            self._report_pulses()
        stopped = sorted(self.fork_client.stopped_ranks())
        if stopped != self._stopped:
            self._stopped = stopped
            self.link.send({"stopped": stopped, "attempt": self._files.attempt})
        if ended:
            self._ended |= set(ended)
            self.link.send({"ended": ended, "attempt": self._files.attempt})

    def _report_pulses(self) -> None:
        beats: dict[int, list[object]] = {}
        for rank in self.fork_client.pids():
            beat = pulse.read_heartbeat(self.folder.scratch, rank)
            if beat and self._pulses.get(rank) != beat.count:
                self._pulses[rank] = beat.count
                age_s = time.monotonic() - beat.t_mono
                beats[rank] = [beat.count, beat.attempt, beat.pid, beat.step, beat.phase, age_s]
        if beats:
            self.link.send({"pulses": beats})

    def _forward_requests(self, notice: StopNotice) -> None:
        """Tell the leader what people ask for on this host, each request once."""
        own_requests = {} if self.shared_disk else self.folder.control_requests()
        requests = {
            "leave": notice.leaving,
            "stop": notice.stopping or own_requests.get("stop", False),
            "save": own_requests.get("save", False),
        }
        for name, wanted in requests.items():
            if wanted and name not in self._sent:
                self.link.send({"asked": name})
                if name == "save":  # it may be asked for again
                    self.folder.acknowledge("save")
                else:
                    self._sent.add(name)


def _has_mark(folder: Path, mark: str) -> bool:
    """Return whether a folder of this host is the same as the leader's, which put a file there."""
    return (folder / mark).exists()
