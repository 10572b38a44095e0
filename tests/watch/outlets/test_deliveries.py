"""What a tracker could not take is sent by a later launch, once."""

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import commands
from penstock.launch.prepare.resume import ResumeDecision
from penstock.ledger.journal.read import next_attempt, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.deliveries import Delivery, read_deliveries, run_id
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.follow import RunFollower
from penstock.watch.outlets.process import LOCK, REST, unsent_outlets, wait_for_other
from penstock.watch.outlets.tracker import LoggedValues, TrackedRun, TrackerOutlet
from penstock.watch.outlets.waiting import NO_ANSWER_S, ServiceWait
from penstock.watch.terminal.display import TerminalDisplay
from tracked_launches import follow, launched, logged_folder
from wandb_server import Wandb, wandb_server


class Service:
    """A tracker that keeps what it is sent, or is not there."""

    name, unsent = "mlflow", ""

    def __init__(self) -> None:
        self.wait = ServiceWait()
        self.there = True
        self.values: list[tuple[int, str, float]] = []
        self.ended: list[str] = []

    def begin(self, run: TrackedRun) -> None:
        self._answer()

    def rewind(self, step: int) -> None:
        """Keep both values."""

    def log(self, rows: Sequence[LoggedValues]) -> None:
        self._answer()
        for row in rows:
            kept = ("train/loss", "validation/loss", "rewards/chosen")
            self.values += [(row.step, k, v) for k, v in row.values.items() if k in kept]

    def alert(self, alert: Alert) -> None:
        self._answer()

    def summarize(self, values: dict[str, float | str]) -> None:
        self._answer()

    def end(self, result: str, well: bool) -> None:
        self._answer()
        self.ended.append(result)

    def _answer(self) -> None:
        if not self.there:
            raise ConnectionError("no server")

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for step, kind, value in self.values if kind == name]


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file, **{"log.mlflow": "http://127.0.0.1:1"})


def launch(folder: RunFolder, service: Service, *words: Any, rest: bool = False, **how: Any) -> str:
    """Make a launch, or none, and follow it as the outlet process does."""
    events, attempt = len(read_events(folder.journal / SUPERVISOR)), next_attempt(folder.journal)
    if words:
        launched(folder, *words, **how)
    known, said = read_deliveries(folder), list[str]()
    outlet = TrackerOutlet(service, attempt, known.get(service.name))
    follower = RunFollower(folder, [outlet], events, attempt, said.append, deliveries=known)
    if rest:
        follower.send_rest()
    else:
        follower.run(poll_s=0.01)
    return "\n".join(said)


REWARDS = {step: (0.5 * step, 0.25, 1.0) for step in range(1, 6)}


def test_the_next_launch_sends_what_a_service_did_not_take(folder: RunFolder) -> None:
    service = Service()
    launch(folder, service, 0, {1: 5.0, 2: 4.0}, "failed", validation={2: 4.5}, rewards=REWARDS)
    service.there = False
    said = launch(
        folder,
        service,
        1,
        {3: 3.5, 4: 3.0},
        "failed",
        t=2000.0,
        validation={4: 3.25},
        rewards=REWARDS,
    )
    sends = "the next `penstock train` of the run sends the rest"
    assert said == f"mlflow: ConnectionError: no server; no more is sent now; {sends}"
    lines = RunFacts(RunView(folder)).problem_lines()
    assert [line.text for line in lines if line.name == "unsent"] == [said]
    assert service.of("train/loss") == [(1, 5.0), (2, 4.0)]

    service.there = True
    assert launch(folder, service, 2, {5: 2.5}, "done", t=3000.0, rewards=REWARDS) == ""
    assert service.of("train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 3.0), (5, 2.5)]
    assert service.of("validation/loss") == [(2, 4.5), (4, 3.25)]
    assert service.of("rewards/chosen") == [(step, 0.5 * step) for step in range(1, 6)]
    assert read_deliveries(folder)["mlflow"].complete
    assert not [x for x in RunFacts(RunView(folder)).problem_lines() if x.name == "unsent"]


def test_the_rest_of_a_finished_run_is_sent_once(folder: RunFolder) -> None:
    service = Service()
    service.there = False
    launch(folder, service, 0, {1: 5.0, 2: 4.0}, "done", validation={2: 4.5})
    assert unsent_outlets(folder) == ["mlflow"]
    assert service.values == []
    service.there = True
    assert launch(folder, service, rest=True) == "mlflow: has all values of the run now"
    assert service.of("train/loss") == [(1, 5.0), (2, 4.0)]
    assert service.of("validation/loss") == [(2, 4.5)]
    assert service.ended == ["done"]
    assert unsent_outlets(folder) == []


def test_a_service_that_goes_away_in_the_middle_is_sent_only_the_rest(folder: RunFolder) -> None:
    service = Service()
    launch(folder, service, 0, {1: 5.0, 2: 4.0}, "done")
    # As if the process had been killed after the first point.
    record = json.loads(folder.outlets_file.read_text())
    (name,) = record["outlets"]["mlflow"]["points"]
    record["outlets"]["mlflow"] |= {"points": {name: 1}, "complete": False}
    folder.outlets_file.write_text(json.dumps(record))
    service.values.clear()
    launch(folder, service, rest=True)
    assert service.of("train/loss") == [(2, 4.0)]


@pytest.mark.parametrize(
    "damage",
    ["", "[]", '{"run": 1}', '{"run": "RUN", "outlets": {"mlflow": {"points": [], "newest": 1}}}'],
)
def test_a_damaged_record_is_no_error(folder: RunFolder, damage: str) -> None:
    service = Service()
    launch(folder, service, 0, {1: 5.0}, "failed")
    known = json.loads(folder.outlets_file.read_text())["run"]
    folder.outlets_file.write_text(damage.replace("RUN", known))
    assert read_deliveries(folder) in ({}, {"mlflow": Delivery()})
    launch(folder, service, 1, {2: 4.0}, "done", t=2000.0)
    assert service.of("train/loss")[-1] == (2, 4.0)


def test_the_record_of_another_run_of_the_name_is_not_read(folder: RunFolder) -> None:
    launch(folder, Service(), 0, {1: 5.0}, "done")
    assert read_deliveries(folder)
    (folder.journal / SUPERVISOR).unlink()
    launched(folder, 1, {1: 5.0}, "done", t=9000.0)
    assert read_deliveries(folder) == {}


def test_train_of_a_finished_run_sends_the_rest(run_file: Callable[..., Path]) -> None:
    """TensorBoard, whose folder a file was in the way of."""
    folder = logged_folder(run_file, **{"log.tensorboard": True})
    launched(folder, 0, {1: 5.0, 2: 4.0}, "done")
    way = folder.path / "tensorboard"
    way.write_text("")
    assert "FileExistsError" in follow(folder, 0, 0, {})
    way.unlink()
    shown = StringIO()
    display = TerminalDisplay(Console(file=shown, width=300))
    run = load(folder.run_file)
    display.resuming(ResumeDecision(run, step=2, finished=True, exists=True), folder)
    assert display.outlets.process is not None
    display.outlets.process.wait(200)
    display.close()
    assert "nothing to do" in shown.getvalue()
    assert "tensorboard: has all values of the run now" in shown.getvalue()
    assert list(way.glob("events.out.tfevents.*"))
    display.resuming(ResumeDecision(run, step=2, finished=True, exists=True), folder)
    assert display.outlets.process is None


@pytest.fixture
def server() -> Iterator[Wandb]:
    with wandb_server() as made:
        yield made


@pytest.fixture
def logged(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file, **{"log.wandb": "project"})


LOSSES = {1: 5.0, 2: 4.0, 3: 3.5}


@pytest.mark.slow
def test_a_wandb_server_that_never_answers_ends_the_process_and_is_sent_all_later(
    logged: RunFolder, server: Wandb
) -> None:
    launched(logged, 0, LOSSES, "done")
    server.hang.set()
    began = time.monotonic()
    said = follow(logged, 0, 0, server.env)
    assert time.monotonic() - began < NO_ANSWER_S + 30  # the client's own limit is 90 s
    assert "wandb: no answer for 15 s" in said
    assert "the next `penstock train` of the run sends the rest" in said
    server.hang.clear()
    said = follow(logged, 3, 1, server.env, what=REST)
    assert "wandb: has all values of the run now" in said
    assert server.steps(run_id(logged), "train/loss") == list(LOSSES.items())


@pytest.mark.slow
def test_a_wandb_server_that_goes_away_leaves_files_that_the_client_sends(
    logged: RunFolder, server: Wandb
) -> None:
    server.hang_on = "file_stream"
    launched(logged, 0, LOSSES, "done")
    began = time.monotonic()
    said = follow(logged, 0, 0, server.env)
    assert time.monotonic() - began < NO_ANSWER_S + 30
    (command,) = re.findall(r"`(wandb sync .*?)` sends the rest", said)
    assert unsent_outlets(logged) == []  # the client has the values: Penstock sends none twice
    assert not server.history
    server.hang_on = ""
    client = [sys.executable, "-c", "from wandb.cli.cli import cli; cli()", *command.split()[1:]]
    subprocess.run(client, env=os.environ | server.env, cwd=logged.path, check=True, timeout=250)
    assert server.steps(run_id(logged), "train/loss") == list(LOSSES.items())


@pytest.mark.slow
def test_a_wandb_server_that_answers_slowly_is_sent_everything(
    logged: RunFolder, server: Wandb
) -> None:
    launched(logged, 0, LOSSES, "done")
    server.delay_s = 4.0
    began = time.monotonic()
    said = follow(logged, 0, 0, server.env)
    assert time.monotonic() - began > NO_ANSWER_S  # else it shows nothing
    assert "no answer" not in said
    assert server.steps(run_id(logged), "train/loss") == list(LOSSES.items())
    assert server.exits == {run_id(logged): 0}
    assert read_deliveries(logged)["wandb"].complete


@pytest.mark.slow
def test_a_second_train_sends_the_rest_to_the_place_that_the_file_now_names(
    run_file: Callable[..., Path], server: Wandb
) -> None:
    away = {"WANDB_BASE_URL": "http://127.0.0.1:1", "WANDB_INIT_TIMEOUT": "3"}
    file = run_file("moved", **{"train.steps": 4, "log.wandb": "project"})
    first = commands.run("train", file, **(server.env | away))
    assert (
        "no more is sent now; the next `penstock train` of the run sends the rest" in first.stdout
    )
    written = file.read_text()
    assert '"project"' in written
    file.write_text(written.replace('"project"', '"other"'))
    second = commands.run("train", file, **server.env)
    assert "nothing to do" in second.stdout
    assert "wandb: has all values of the run now" in second.stdout
    ((name, sent),) = server.runs.items()
    assert sent["project"] == "other"
    assert [step for step, _ in server.steps(name, "train/loss")] == [1, 2, 3, 4]


def test_two_processes_of_a_run_send_one_after_the_other(folder: RunFolder) -> None:
    """A launch follows while the process of the last one still serves a slow service."""
    with open(folder.logs / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=wait_for_other, args=(folder,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()
