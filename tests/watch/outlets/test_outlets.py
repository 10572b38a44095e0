"""The outlet process: it follows the run folder, sends everything, and never delays the run."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commands
from hook_server import Hook, hook
from penstock.errors import PenstockError
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.deliveries import read_deliveries
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets import process as outlets
from penstock.watch.outlets import waiting
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.follow import Outlet, RunFollower
from penstock.watch.outlets.waiting import ServiceWait
from penstock.watch.outlets.webhook import Webhook


@pytest.fixture
def server() -> Iterator[Hook]:
    with hook() as made:
        yield made


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    run = load(run_file("followed"))
    made = RunFolder(run.folder)
    made.make()
    save(run, made.run_file)
    return made


class Kept:
    """An outlet that keeps what it is given; it can hang or fail."""

    kept, remedy, problem = False, "the next launch sends it", ""

    def __init__(
        self, fail: str = "", hang: threading.Event | None = None, name: str = "kept"
    ) -> None:
        self.fail, self.hang, self.name = fail, hang, name
        self.wait = ServiceWait()
        self.calls: list[str] = []
        self.steps: list[int] = []

    def _called(self, name: str) -> None:
        if self.hang:
            with self.wait.for_answer():
                self.hang.wait()
        self.calls.append(name)
        if name == self.fail:
            raise RuntimeError("no room")

    def begin(self, view: RunView) -> None:
        self._called("begin")

    def send_points(self, points: np.ndarray) -> None:
        self._called("points")
        self.steps += points["step"].tolist()

    def send_summary(self, view: RunView) -> None:
        self._called("measured")

    def send_alert(self, news: Alert) -> None:
        self._called(news.event)

    def close(self, result: str) -> None:
        self._called(f"close {result}")


def journal(folder: RunFolder, ended: bool = True) -> None:
    """Write the journal of a run that crashed once and finished."""
    with Journal(folder.journal, 0) as rank:
        for step in (1, 2, 3):
            rank.curve(step, 4.0, 1.0, 1e-3, 10.0 * step)
    supervisor = SupervisorJournal(folder.journal)
    supervisor.event("invocation", ranks=1)
    supervisor.event("fault", attempt=0, rank=0, reason="killed", action="restart")
    with Journal(folder.journal, 1) as rank:
        for step in (3, 4):
            rank.curve(step, 3.0, 1.0, 1e-3, 10.0 * step)
    if ended:
        supervisor.event("ended", result="done", error="")
    supervisor.close()


def follow(folder: RunFolder, *followed: Outlet, **options: Any) -> list[str]:
    said: list[str] = []
    options = {"events_read": 0, "first_attempt": 0} | options
    RunFollower(folder, list(followed), say=said.append, **options).run(poll_s=0.01)
    return said


def test_all_points_and_alerts_reach_every_outlet(folder: RunFolder) -> None:
    journal(folder)
    kept = [Kept(), Kept()]
    assert follow(folder, *kept) == []
    for one in kept:
        assert one.steps == [1, 2, 3, 3, 4]
        assert one.calls[0] == "begin"
        assert one.calls[-2:] == ["measured", "close done"]
        assert [c for c in one.calls if c in ("crash", "finish")] == ["crash", "finish"]


def test_a_failing_outlet_is_reported_and_the_others_go_on(folder: RunFolder) -> None:
    journal(folder)
    bad, good = Kept(fail="points"), Kept()
    (said,) = follow(folder, bad, good)
    assert said == "kept: RuntimeError: no room; no more is sent now; the next launch sends it"
    assert good.calls[-1] == "close done"


def test_an_outlet_that_hangs_is_not_waited_for(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(folder)
    monkeypatch.setattr(waiting, "NO_ANSWER_S", 0.5)
    over = threading.Event()
    slow, good = Kept(hang=over), Kept()
    (said,) = follow(folder, slow, good)
    assert "not everything was sent" in said
    assert good.calls[-1] == "close done"
    over.set()


def test_a_service_that_never_answers_is_given_up_soon_after_the_end(
    folder: RunFolder, server: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(folder)
    monkeypatch.setattr(waiting, "NO_ANSWER_S", 1.0)
    server.hang.set()
    began = time.monotonic()
    said = follow(folder, Webhook(server.url, "followed", 4, print))
    assert time.monotonic() - began < 8  # one try alone takes ten seconds
    (told,) = said
    assert told.startswith("webhook: no answer for ")
    assert "`penstock report followed`" in told
    lines = RunFacts(RunView(folder)).problem_lines()
    assert [line.text for line in lines if line.name == "unsent"] == [told]


def test_a_slow_service_that_answers_is_sent_everything(
    folder: RunFolder, server: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(folder)
    monkeypatch.setattr(waiting, "NO_ANSWER_S", 1.5)
    server.delay_s = 1.0
    said: list[str] = []
    follow(folder, Webhook(server.url, "followed", 4, said.append))
    assert [got["event"] for got in server.got] == ["crash", "finish"]
    assert said == ["webhook: 2 sent to http://127.0.0.1/…"]
    assert read_deliveries(folder)["webhook"].complete


def test_an_answer_that_names_a_time_is_waited_for(
    folder: RunFolder, server: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(folder)
    monkeypatch.setattr(waiting, "NO_ANSWER_S", 1.0)
    server.answers, server.headers = [429], {"Retry-After": "3"}
    said: list[str] = []
    assert follow(folder, Webhook(server.url, "followed", 4, said.append)) == []
    assert [got["event"] for got in server.got] == ["crash", "finish"]
    assert said == ["webhook: 2 sent to http://127.0.0.1/…"]


def test_a_launch_sends_nothing_of_earlier_launches(folder: RunFolder) -> None:
    journal(folder)
    events_read = len(read_events(folder.journal / "supervisor.events"))
    supervisor = SupervisorJournal(folder.journal)
    supervisor.event("invocation", ranks=1)
    with Journal(folder.journal, 2) as rank:
        rank.curve(5, 2.0, 1.0, 1e-3, 50.0)
    supervisor.event("ended", result="stopped", error="")
    supervisor.close()
    kept = Kept()
    follow(folder, kept, events_read=events_read, first_attempt=2)
    assert kept.steps == [5]
    assert "crash" not in kept.calls
    assert "stopped" in kept.calls


def test_the_alert_of_a_dead_supervisor_follows_its_last_events(folder: RunFolder) -> None:
    journal(folder, ended=False)
    kept = Kept()
    follow(folder, kept, alive=lambda: False)
    assert [c for c in kept.calls if c in ("crash", "finish")] == ["crash", "crash"]
    assert kept.calls[-1] == "close killed"


def test_a_real_run_says_that_it_finished(run_file: Callable[..., Path], server: Hook) -> None:
    file = run_file("hooked", **{"log.webhook": "$HOOK", "train.steps": 4})
    with commands.popen("train", file, one_pipe=True, HOOK=server.url) as process:
        said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    (got,) = server.wait(1)
    assert (got["run"], got["event"], got["step"], got["steps"]) == ("hooked", "finish", 4, 4)
    assert "\x1b" not in said.partition("Given")[0]  # no terminal: lines without codes
    assert "webhook: 1 sent to http://127.0.0.1/…" in said
    written = [p.read_text() for p in (file.parent / "runs/hooked").rglob("*.log")]
    assert "s3cr3t" not in said + "".join(written)


@pytest.mark.slow
def test_a_supervisor_that_is_really_killed_is_an_alert(
    run_file: Callable[..., Path], server: Hook
) -> None:
    """Nobody is left to say it but the process beside the run."""
    file = run_file("killed", **{"log.webhook": server.url, "train.steps": 100000})
    folder = RunFolder(load(file).folder)
    with commands.popen("train", file, one_pipe=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("step "):
                break
        os.kill(process.pid, signal.SIGKILL)
    (got,) = server.wait(1)
    assert got["event"] == "crash"
    assert "supervisor was killed" in got["words"]
    assert got["step"] > 0
    assert RunView(folder).status == "killed"


def test_an_outlet_that_cannot_send_is_refused_before_the_start(
    run_file: Callable[..., Path],
) -> None:
    file = run_file("unset", **{"log.webhook": "$NO_SUCH_HOOK"})
    with pytest.raises(PenstockError, match="NO_SUCH_HOOK is not set"):
        outlets.check(load(file))


@pytest.mark.parametrize("begun", [False, True])
def test_the_process_ends_with_the_folder_of_a_refused_run(folder: RunFolder, begun: bool) -> None:
    """Its parent lives on: a notebook, or `penstock train`, which waits for it."""
    if begun:
        journal(folder, ended=False)
    polls = 0

    def alive() -> bool:
        nonlocal polls
        polls += 1
        if polls == 3:
            shutil.rmtree(folder.path)
        assert polls < 10
        return True

    follow(folder, Kept(), alive=alive)
    assert polls == 3


def test_a_refused_run_has_no_log_to_read(folder: RunFolder) -> None:
    ended = outlets.OutletProcess()
    ended.process = subprocess.Popen(["true"])
    ended.log = folder.logs / "outlets.log"
    assert ended.ended() == []
