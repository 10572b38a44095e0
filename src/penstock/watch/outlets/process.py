"""A process beside a run that reads its folder and sends alerts and values to other services.

The run never waits for it. It starts with the ranks, follows the journal, and may outlive
`penstock train` while a slow service takes the last values; one that does not answer is given up
soon after the end. `outlets.json` has what was sent, so that a later launch sends the rest. An
error is a line in `logs/outlets.log`.
An outlet is a class of the protocol `Outlet` (follow.py) or `Tracker` (tracker.py), in a file of
its own, and a line in `build_outlets`.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.read import next_attempt, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.run.schema.log import OUTLETS
from penstock.run.schema.run import Run
from penstock.secret import RedactedText
from penstock.watch.facts.deliveries import Delivery, read_deliveries
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.follow import Outlet, RunFollower
from penstock.watch.outlets.waiting import NO_ANSWER_S

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import ResumeDecision

WAIT_S = NO_ANSWER_S + 3.0  # that `penstock train` waits: until a service is given up
SILENT_S = 2.0  # of that, before it says why it waits
LOG, LOCK = "outlets.log", "outlets.lock"
REST = "rest"  # argument of the process: send what earlier launches could not
LINES = 8  # of messages that the user sees


def check(run: Run) -> None:
    """Raise PenstockError, before anything starts, for an outlet that could not send."""
    from penstock.watch.outlets import mlflow_log, tensorboard_log, trackio_log, wandb_log, webhook

    log = run.log
    if log.webhook:
        webhook.address(log.webhook)
    if log.wandb:
        wandb_log.check(log.wandb)
    if log.tensorboard:
        tensorboard_log.check(log.tensorboard)
    if log.mlflow:
        mlflow_log.check(log.mlflow)
    if log.trackio:
        trackio_log.check(log.trackio)


def build_outlets(
    view: RunView,
    say: Callable[[str], None],
    first_attempt: int = 0,
    deliveries: Mapping[str, Delivery] | None = None,
) -> list[Outlet]:
    """Return the outlets of a run; `first_attempt` is the first of this launch."""
    from penstock.watch.outlets.mlflow_log import MlflowLog
    from penstock.watch.outlets.tensorboard_log import TensorboardLog
    from penstock.watch.outlets.tracker import Tracker, TrackerOutlet
    from penstock.watch.outlets.trackio_log import TrackioLog
    from penstock.watch.outlets.wandb_log import WandbLog
    from penstock.watch.outlets.webhook import Webhook, address

    log, outlets, trackers = view.run.log, list[Outlet](), list[Tracker]()
    if log.webhook:
        outlets.append(Webhook(address(log.webhook), view.folder.name, view.steps, say))
    if log.wandb:
        trackers.append(WandbLog(log.wandb, say))
    if log.tensorboard:
        trackers.append(TensorboardLog(log.tensorboard, say))
    if log.mlflow:
        trackers.append(MlflowLog(log.mlflow, say))
    if log.trackio:
        trackers.append(TrackioLog(log.trackio, say))
    known = deliveries or {}
    return outlets + [TrackerOutlet(one, first_attempt, known.get(one.name)) for one in trackers]


class OutletProcess(Listener):
    """The handle of the outlet process in `penstock train`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        if RunView(folder).run.log.outlets:
            self._start(folder)

    def resuming(self, how: "ResumeDecision", folder: RunFolder) -> None:
        """Send what earlier launches could not, if there will be no other launch."""
        if how.finished and how.run.cluster.nodes == 1 and unsent_outlets(folder):
            self._start(folder, REST)

    def _start(self, folder: RunFolder, *what: str) -> None:
        events_read = len(read_events(folder.journal / SUPERVISOR))
        start = (folder.path, os.getpid(), events_read, next_attempt(folder.journal), *what)
        folder.logs.mkdir(parents=True, exist_ok=True)
        self.log = folder.logs / LOG
        self.log.write_text("")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.watch.outlets.process", *map(str, start)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the run
            )

    def ended(
        self, wait_s: float = WAIT_S, say: Callable[[str], None] = lambda words: None
    ) -> list[str]:
        """Wait for the process, but not long for a slow service; return messages for the user."""
        if self.process is None or self.log is None:
            return []
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(min(SILENT_S, wait_s))
            if self.process.poll() is None:
                say("sending the last values to the outlets …")
            code = self.process.wait(max(0.0, wait_s - SILENT_S))
        except subprocess.TimeoutExpired:
            return [f"values are still being sent, in the background; see {self.log}"]
        finally:
            self.process = None
        # The rest of the log is what the clients of the services print.
        said = tuple(f"{name}: " for name in OUTLETS)
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []  # bad input ended the run before its first step: it left no folder
        told = [line for line in lines if line.startswith(said)]
        return [f"outlets failed, see {self.log}"] if code else told[-LINES:]


def unsent_outlets(folder: RunFolder) -> list[str]:
    """Return the trackers that lack values which Penstock can still send."""
    in_use = RunView(folder).run.log.outlets
    return [
        name
        for name, delivery in read_deliveries(folder).items()
        if name in in_use and name != "webhook" and not delivery.complete
    ]


def main(path: str, parent: str, events_read: str, first_attempt: str, what: str = "") -> None:
    """Follow a run from its folder; `parent` is the process id of its supervisor."""
    os.nice(10)  # the cores belong to the ranks
    folder = RunFolder(Path(path))

    def say(words: str) -> None:
        print(words, flush=True)

    wait_for_other(folder)
    view, deliveries = RunView(folder), read_deliveries(folder)
    outlets = build_outlets(view, say, int(first_attempt), deliveries)
    if what == REST:
        unsent = unsent_outlets(folder)
        outlets = [outlet for outlet in outlets if outlet.name in unsent]
    follower = RunFollower(
        folder,
        outlets,
        int(events_read),
        int(first_attempt),
        say,
        patience_s=2 * view.run.guard.timeout,
        alive=lambda: os.getppid() == int(parent),
        deliveries=deliveries,
    )
    if what == REST:
        follower.send_rest()
    else:
        follower.run()
    sys.stdout.flush()
    os._exit(0)  # do not wait for threads that hang


def wait_for_other(folder: RunFolder) -> None:
    """Wait until the process of an earlier launch has sent its last values. The lock is kept."""
    with suppress(OSError):  # a disk without locks
        lock = os.open(folder.logs / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)


if __name__ == "__main__":
    sys.stdout = sys.stderr = RedactedText(1)
    main(*sys.argv[1:])
