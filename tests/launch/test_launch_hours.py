"""budget.hours_csv: a run pauses in dear hours, goes on exactly, and says so."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.launch import start as launch
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.launch.supervisor import hours as hours_room
from penstock.launch.supervisor.hours import hour_watch
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import PauseEnded, RunPaused
from penstock.ledger.journal.read import JournalLine, read_events
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import summary
from whole_runs import FIELDS, STEPS, At, pids

MakeFile = Callable[..., Path]
CHEAP, DEAR = 0.05, 0.35


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@dataclass
class Clock:
    """A time of day that a test sets; it does not move by itself."""

    t: float

    def __call__(self) -> float:
        return self.t


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day of every run of this test: a cheap hour in the morning."""
    made = Clock(at("2026-11-18T08:00"))
    monkeypatch.setattr(launch, "hour_watch", partial(hour_watch, clock=made))
    return made


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Cheap until noon, dear from then on."""
    path = tmp_path / "hours.csv"
    rows = [f"{hour},{CHEAP if hour < 12 else DEAR}" for hour in range(24)]
    path.write_text("\n".join(["hour,usd_per_kwh", *rows]) + "\n")
    return path


def fields(csv: Path) -> list[str]:
    return [f"budget.hours_csv={csv}", "budget.finish_within=30 days"]


def lines(folder: RunFolder, *classes: type) -> list[JournalLine]:
    every = read_events(folder.journal / "supervisor.events")
    return [line for line in every if isinstance(line.event, classes)]


class Noon(At):
    """Sets the clock to the afternoon at a step; in the pause that follows it calls `meanwhile`.

    The ranks stand still until the supervisor has seen the clock: they could end before.
    """

    def __init__(
        self, step: int, clock: Clock, meanwhile: Callable[[RunFolder], None] | None = None
    ) -> None:
        super().__init__(step, self._noon)
        self.clock, self.meanwhile, self.told = clock, meanwhile, list[str]()

    def _noon(self, folder: RunFolder) -> None:
        self._signal(folder, signal.SIGSTOP)
        self.clock.t = at("2026-11-18T12:30")

    def _signal(self, folder: RunFolder, number: signal.Signals) -> None:
        for pid in pids(folder):
            os.kill(pid, number)

    def paused(self, words: str) -> None:
        self.told.append(words)
        if words.startswith("pausing"):
            assert self.folder
            self._signal(self.folder, signal.SIGCONT)
        elif words.startswith("paused"):
            threading.Thread(target=self._midnight, daemon=True).start()

    def _midnight(self) -> None:
        if self.meanwhile:
            assert self.folder
            self.meanwhile(self.folder)
        self.clock.t = at("2026-11-19T00:00:01")


def test_a_run_that_paused_ends_with_the_weights_of_one_that_did_not(
    run_file: MakeFile, csv: Path, clock: Clock
) -> None:
    plain = summary(start(load(run_file("plain", **FIELDS))))
    seen: dict[str, Any] = {}

    def look(folder: RunFolder) -> None:
        view = RunView(folder)
        seen["pause"], seen["status"] = view.pause, view.status
        time.sleep(0.5)  # a pause that shows in the ledger

    noon = Noon(STEPS // 3, clock, look)
    folder = start(load(run_file(**FIELDS), fields(csv)), listener=noon)
    found = summary(folder)
    assert found["weights_hash"] == plain["weights_hash"]
    assert found["steps"] == STEPS
    assert found["faults"] == 0
    assert noon.told[-1] == ""
    assert "paused until 00:00 (0.35 USD per kWh)" in noon.told
    assert seen == {"pause": "paused until 00:00 (0.35 USD per kWh)", "status": "running"}
    # The pause is `down`, whole: not start-up, not unexplained.
    paused, over = lines(folder, RunPaused, PauseEnded)
    view = RunView(folder)
    length_s = over.t - paused.t
    assert length_s > 0.5
    assert view.paused_s == pytest.approx(length_s)
    ranks = view.account.ranks
    assert view.account.ledger.seconds[Cause.DOWN] == pytest.approx(ranks * length_s, rel=1e-6)
    total = sum(one.window_s * one.ranks for one in view.account.invocations)
    assert view.account.ledger.total == pytest.approx(total)
    assert view.pause == ""


def test_a_run_that_begins_in_a_dear_hour_waits_and_can_be_stopped_and_gone_on_with(
    run_file: MakeFile, csv: Path, clock: Clock
) -> None:
    clock.t = at("2026-11-18T15:00")
    run = load(run_file(**FIELDS | {"train.steps": 5}), fields(csv))

    class Impatient(Listener):
        def paused(self, words: str) -> None:
            if words:
                RunFolder(run.folder).request("stop")

    folder = start(run, listener=Impatient())
    assert summary(folder)["status"] == "stopped"
    assert not list(folder.journal.glob("*.steps"))
    clock.t = at("2026-11-19T03:00")
    assert summary(start(run))["steps"] == 5


def test_hours_that_are_wrong_are_refused_before_anything_starts(
    run_file: MakeFile, csv: Path
) -> None:
    csv.write_text("hour,usd_per_kwh\n" + "".join(f"{hour},0.1\n" for hour in range(23)))
    run = load(run_file(**FIELDS), fields(csv))
    with pytest.raises(Exception, match=r"hours\.csv: 23 hours \(23 is missing\)"):
        start(run)
    assert not RunFolder(run.folder).run_file.exists()


def test_the_watch_asks_again_every_hour_and_with_what_is_left(
    run_file: MakeFile, csv: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load(run_file(**FIELDS), fields(csv))
    folder = RunFolder(run.folder)
    watch = hour_watch(run, folder, {"predicted": {"none": ""}, "ranks": 2}, clock)
    assert watch is not None
    asked: list[float] = []
    monkeypatch.setattr(hours_room.HourWatch, "_work_s", lambda self: asked.append(1) or 3600.0)
    watch.level = 0
    assert watch.look().level == watch.look().level == 0
    assert len(asked) == 1
    clock.t += 3600
    watch.look()
    assert len(asked) == 2
    clock.t = at("2026-11-18T13:00")
    assert watch.look().level is None
    assert watch.words() == "until 00:00 (0.35 USD per kWh)"
    watch.finish_within_s = 4000.0  # no time is left for a pause
    watch.ranks_ended()
    assert watch.look().level == 0
