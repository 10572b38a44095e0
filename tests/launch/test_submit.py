"""A run that an engine starts: submitted, followed, left alone, attached to, stopped.

The engine starts plain processes here (`process_engine.py`); `make test-slurm` has the same on a
real scheduler.
"""

import json
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.launch.dry_run import dry_run
from penstock.launch.engines import table
from penstock.launch.engines.engine import JobPhase, JobState, Submission, read_submission
from penstock.launch.prepare.listener import Listener
from penstock.launch.submit import submit_and_follow
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_view import RunView
from process_engine import ProcessEngine

MakeFile = Callable[..., Path]
TWO_NODES = {
    "cluster.launcher": "slurm",
    "cluster.nodes": 2,
    "cluster.accelerators": 1,
    "cluster.wait": "60 s",
    "evaluate.every": "never",
    "guard.checkpoint": "50 steps",
}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setitem(table.ENGINES, "slurm", ("process_engine", "ProcessEngine"))
    monkeypatch.setattr(table, "FRESH_S", 0.0)
    ProcessEngine.started.clear()
    monkeypatch.chdir(tmp_path)
    yield
    for one in chain.from_iterable(ProcessEngine.started.values()):
        if one.poll() is None:
            one.kill()
            one.wait()


class Shown(Listener):
    """What a person sees; `at` is called with each, and may raise Ctrl-C."""

    def __init__(self, at: Callable[[str], None] = lambda kind: None) -> None:
        self.told: list[str] = []
        self.at = at
        self.ask: Callable[[str], None] = lambda what: None

    def _tell(self, kind: str, words: str = "") -> None:
        self.told.append(f"{kind}: {words}")
        self.at(kind)

    def queued(self, words: str) -> None:
        self._tell("queued", words)

    def host_message(self, words: str) -> None:
        self._tell("said", words)

    def following(
        self, folder: RunFolder, plan: dict[str, Any], ask: Callable[[str], None]
    ) -> None:
        self.ask = ask
        self._tell("following", str(folder.path))

    def detached(self, words: str) -> None:
        self._tell("detached", words)

    def tick(self) -> None:
        self.at("tick")


def leave_when(kind: str) -> Callable[[str], None]:
    def at(found: str) -> None:
        if found == kind:
            raise KeyboardInterrupt

    return at


def invoke(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_submitted_followed_and_done(run_file: MakeFile, tmp_path: Path) -> None:
    """Each node has the run folder of the others, and a durable place beside it."""
    durable = {"guard.durable": str(tmp_path / "durable"), "train.steps": 60}
    run = load(run_file("two", **TWO_NODES, **durable))
    shown = Shown()
    folder = submit_and_follow(run, listener=shown)
    assert shown.told[0].startswith("said: submitted as job ")
    assert f"following: {folder.path}" in shown.told
    view = RunView(folder)
    assert view.status == "done"
    assert view.step == 60
    assert view.launch.ranks == 2
    again = Shown()
    assert submit_and_follow(run, listener=again) == folder
    assert again.told == []  # nothing was submitted


def test_left_attached_and_stopped(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessEngine, "held", True)
    file = run_file("two", **TWO_NODES, **{"train.steps": 100_000})
    run = load(file)
    waiting = Shown(leave_when("queued"))
    folder = submit_and_follow(run, listener=waiting)
    assert "goes on" in waiting.told[-1]
    assert "queued" in invoke("status", "two", "--dir", str(folder.path.parent))
    assert "queued" in invoke("ls", "--dir", str(folder.path.parent))
    first = read_submission(folder.path)
    assert first is not None
    with pytest.raises(PenstockError, match=r"of this name is queued with another run file"):
        submit_and_follow(load(file, ["train.seed=1"]))

    monkeypatch.setattr(ProcessEngine, "held", False)
    attached = Shown(leave_when("following"))
    submit_and_follow(run, listener=attached)
    assert "said: attached to job" in attached.told[0]
    assert read_submission(folder.path) == first  # one job
    until(lambda: len(RunView(folder).curve) > 2)
    assert RunView(folder).status == "running"

    stopper = Shown()
    stopper.at = lambda kind: stopper.ask("stop") if kind == "following" else None
    submit_and_follow(run, listener=stopper)  # as a person who presses q
    assert RunView(folder).status == "stopped"
    state = table.job_of(folder.path)
    assert state is not None
    assert state.phase is JobPhase.ENDED


def test_cancelled_in_the_queue(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessEngine, "held", True)
    run = load(run_file("two", **TWO_NODES))
    folder = submit_and_follow(run, listener=Shown(leave_when("queued")))
    assert "is cancelled" in invoke("stop", "two", "--dir", str(folder.path.parent))
    assert RunView(folder).status == "new"
    assert ProcessEngine.started == {}


def test_a_fault_of_the_watching_thread_ends_the_command(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ProcessEngine, submission: Submission) -> JobState:
        raise ValueError("squeue printed a riddle")

    monkeypatch.setattr(ProcessEngine, "state", broken)
    with pytest.raises(ValueError, match="a riddle"):
        submit_and_follow(load(run_file("two", **TWO_NODES)), listener=Shown())


def test_a_refused_run_leaves_nothing(run_file: MakeFile, tmp_path: Path) -> None:
    run = load(run_file("two", **TWO_NODES | {"cluster.nodes": 9}))
    with pytest.raises(PenstockError, match=r"cluster.nodes = 9: too many; ask for 8"):
        submit_and_follow(run)
    assert not (tmp_path / "runs").exists()


def test_nodes_that_see_another_durable_place_refuse_to_train_alone(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.launch.hosts import meeting

    run = load(run_file("two", **TWO_NODES, **{"guard.durable": str(tmp_path / "local")}))
    place = meeting.meeting_place(run)
    meeting.mark_submission(place, "word")
    assert not meeting.was_stopped(place, "word")
    with pytest.raises(PenstockError, match=r"this node does not find there"):
        meeting.was_stopped(place, "another")
    meeting.mark_stopped(place, "word")
    assert meeting.was_stopped(place, "word")
    meeting.mark_submission(place, "word")  # submitted again
    assert not meeting.was_stopped(place, "word")


def test_dry_run_prints_what_is_submitted(run_file: MakeFile, tmp_path: Path) -> None:
    file = run_file("two", **TWO_NODES)
    told = json.loads(invoke("train", str(file), "--dry-run", "--json"))
    run = with_cluster_file(load(file))
    assert told["text"] == dry_run(run).text
    assert "2 × penstock train" in told["text"]
    local = invoke("train", str(file), "cluster.launcher=local", "cluster.nodes=1", "--dry-run")
    assert "run 'two' would train on this machine" in local
    assert not (tmp_path / "runs").exists()


def test_requests_reach_a_leader_that_shares_no_folder(tmp_path: Path) -> None:
    from penstock.data.store.meeting_place import SharedFolder
    from penstock.launch.hosts import meeting

    place = SharedFolder(tmp_path)
    meeting.request(place, "stop")  # to an earlier invocation
    taken: list[str] = []
    reader = meeting.RequestReader(place, taken.append)
    reader.close()
    until(lambda: not reader._thread.is_alive())
    reader.poll()
    assert taken == []
    for what in ("save", "stop"):
        meeting.request(place, what)
        reader.poll()
        reader.poll()
    assert taken == ["save", "stop"]
