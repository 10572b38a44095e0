"""budget.hours_csv: a run pauses in dear hours, goes on exactly, and says so."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from made_probe import known_watts
from penstock.drill import audit
from penstock.launch import start as launch
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.launch.supervisor import hours as hours_room
from penstock.launch.supervisor.hours import HourWatch, hour_watch
from penstock.launch.verify import notes_of, verify
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import AttemptLaunched, PauseEnded, RunPaused, RunResized
from penstock.ledger.journal.read import JournalLine, read_events, read_steps
from penstock.ledger.journal.records import file_name
from penstock.ledger.merge import attempt_windows
from penstock.ledger.timeline import AttemptWindow
from penstock.policy.hours.terms import HourTerms, PowerLevel
from penstock.run.folder import RunFolder
from penstock.run.hours import Hour, HourlyCurve
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.watch.facts.rank_health import rank_health
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import summary
from whole_runs import FIELDS, STEPS, At, pids, reached
from written_run import PLAN, Written

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


def paying(csv: Path) -> list[str]:
    """Hours in which a run of seconds pauses: its machines draw nothing then."""
    return [*fields(csv), "budget.hours_paused=off"]


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
    folder = start(load(run_file(**FIELDS), paying(csv)), listener=noon)
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
    run = load(run_file(**FIELDS | {"train.steps": 5}), paying(csv))

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


# Hours with power for some of the accelerators

FEWER = FIELDS | {
    "train.steps": 200,  # enough that the hour changes before they are done
    "train.precision": "fp32",
    "cluster.accelerators": 2,
    "evaluate.every": "40 steps",
}


@pytest.fixture
def metered() -> Iterator[None]:
    """This machine, with two ranks whose watts are known."""
    with known_watts():
        yield


@pytest.fixture
def limited(
    tmp_path: Path,
    run_file: MakeFile,
    clock: Clock,
    metered: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Run]:
    """A run of two ranks or more; the hour from noon has the power for `at_noon` of them."""
    # Decisions are about hours, and these runs take seconds.
    work_s = hours_room.HourWatch._work_s
    monkeypatch.setattr(hours_room.HourWatch, "_work_s", lambda self: 1e4 * (work_s(self) or 0.0))
    path = tmp_path / "limits.csv"

    def write(limit_w: float) -> None:
        rows = [f"{hour},{CHEAP},{limit_w if hour == 12 else 1e6}" for hour in range(24)]
        path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")

    def made(at_noon: int = 1, **more: Any) -> Run:
        file = run_file(**FEWER | more)
        write(1e6)
        planned = penstock.plan(load(file, fields(path))).hours
        assert planned is not None
        needs_w = [one.needs_w for one in planned.terms.levels]
        place = [one.accelerators for one in planned.terms.levels].index(at_noon)
        write((needs_w[place - 1] + needs_w[place]) / 2)
        return load(file, fields(path))

    return made


class Day(Listener):
    """Sets the clock to the hour that has less power, and to the one after it, at two steps.

    The ranks stand still until the supervisor has seen the clock. Every sample is recorded.
    """

    def __init__(
        self, clock: Clock, noon: int, one: int, meanwhile: Callable[[RunFolder], None]
    ) -> None:
        self.clock, self.noon, self.one, self.meanwhile = clock, noon, one, meanwhile
        self.told = list[str]()

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self.folder = folder
        folder.audit.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._day, daemon=True).start()

    def _day(self) -> None:
        self._until(self.noon, "2026-11-18T12:00:30")
        while not self._resized():
            time.sleep(0.001)
        while reached(self.folder) < self.one:
            time.sleep(0.001)
        self.meanwhile(self.folder)
        self._until(self.one, "2026-11-18T13:00:30")

    def _resized(self) -> list[JournalLine]:
        return lines(self.folder, RunResized)

    def _until(self, step: int, moment: str) -> None:
        while reached(self.folder) < step:
            time.sleep(0.001)
        self._signal(signal.SIGSTOP)
        self.clock.t = at(moment)

    def _signal(self, number: signal.Signals) -> None:
        for pid in pids(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def resized(self, words: str) -> None:
        self.told.append(words)
        if words.startswith("saving"):
            self._signal(signal.SIGCONT)


def unlimited(run_file: MakeFile) -> dict[str, float]:
    """The losses of a run that was never disturbed."""
    return losses(start(load(run_file("plain", **FEWER))))


def losses(folder: RunFolder) -> dict[str, float]:
    return {str(point["step"]): float(point["loss"]) for point in RunView(folder).curve}


def check_samples(folder: RunFolder) -> None:
    """Every sample was used once, by whatever ranks there were."""
    final = audit.final_uses(audit.read(folder.audit))
    counted = audit.count_samples(final, FEWER["train.steps"], 8)
    assert (counted.lost, counted.doubled) == (0, 0)


def check_ledger(view: RunView) -> list[AttemptWindow]:
    """The causes add up to the time of all ranks; the rank that an hour leaves out is `down`."""
    account = view.account
    total = sum(one.window_s * one.ranks for one in account.invocations)
    assert account.ranks == 2
    assert account.ledger.total == pytest.approx(total)
    windows = [
        part
        for invocation, attempts in view.history
        for part in attempt_windows(invocation, attempts)
        if isinstance(part, AttemptWindow)
    ]
    fewer_s = sum(one.end - one.start for one, n in zip(windows, sizes(view), strict=True) if n < 2)
    idle, works = account.by_rank[1].seconds, account.by_rank[0].seconds
    assert idle[Cause.DOWN] - works[Cause.DOWN] == pytest.approx(fewer_s)
    assert view.fewer_s == pytest.approx(fewer_s)
    return windows


def sizes(view: RunView) -> list[int]:
    return [line.event.ranks for line in view.supervisor_events_of(AttemptLaunched)]


def test_an_hour_with_power_for_one_of_two_ranks_is_trained_on_one(
    run_file: MakeFile, limited: Callable[..., Run], clock: Clock
) -> None:
    plain = unlimited(run_file)
    seen: dict[str, Any] = {}

    def look(folder: RunFolder) -> None:
        view = RunView(folder)
        seen["fewer"], seen["status"], seen["pause"] = view.fewer, view.status, view.pause
        seen["health"] = rank_health(view).to_json()["counts"]
        seen["line"] = [text for text in problem_texts(view) if "accelerators" in text]

    day = Day(clock, 30, 60, look)
    folder = start(limited(), listener=day)
    found, view = summary(folder), RunView(folder)
    assert (found["steps"], found["status"]) == (200, "done")
    check_samples(folder)
    assert losses(folder) == pytest.approx(plain, rel=1e-4)
    # It was planned: no fault, and every attempt says how many ranks it has, and why.
    assert found["faults"] == 0
    assert sizes(view) == [2, 1, 2]
    one, both = lines(folder, RunResized)
    assert (one.event.ranks, one.event.of, both.event.ranks) == (1, 2, 2)
    words = one.event.why
    assert words.startswith("on 1 of 2 accelerators until 13:00 (0.05 USD per kWh, ")
    assert words.endswith(" kW from the grid)")
    assert day.told == [
        f"saving, then training {words}",
        words,
        "saving, then training on all 2 accelerators again",
        "on all 2 accelerators again",
    ]
    assert (seen["fewer"], seen["status"], seen["pause"]) == (words, "running", "")
    assert words in seen["line"]
    assert seen["health"] == {"fine": 1, "not started": 1}
    assert view.fewer == ""
    assert any("on some accelerators" in text for text in problem_texts(view))
    check_ledger(view)
    # What is compared with the plan is the pace on all ranks.
    assert view.fewer_attempts == {one.attempt}
    steps = read_steps(folder.journal / file_name(both.attempt, range(1), "steps"))["total"]
    assert view.whole_step_s == pytest.approx(float(np.median(steps)))


def test_a_rank_that_dies_in_an_hour_of_one_starts_again_alone(
    run_file: MakeFile, limited: Callable[..., Run], clock: Clock
) -> None:
    plain = unlimited(run_file)

    def kill(folder: RunFolder) -> None:
        os.kill(pids(folder)[0], signal.SIGKILL)
        while len(lines(folder, RunResized)) < 2:
            time.sleep(0.01)
        while reached(folder) < 75:
            time.sleep(0.001)

    folder = start(limited(), listener=Day(clock, 30, 60, kill))
    found, view = summary(folder), RunView(folder)
    assert (found["status"], found["faults"]) == ("done", 1)
    assert sizes(view) == [2, 1, 1, 2]
    assert [line.event.ranks for line in lines(folder, RunResized)] == [1, 1, 2]
    check_samples(folder)
    assert losses(folder) == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
def test_replicas_of_live_mode_are_as_many_as_the_hour_allows(
    run_file: MakeFile, limited: Callable[..., Run], clock: Clock
) -> None:
    plain = unlimited(run_file)
    run = limited(2, **{"cluster.accelerators": 4, "guard.mode": "live"})
    folder = start(run, listener=Day(clock, 30, 60, lambda folder: None))
    found, view = summary(folder), RunView(folder)
    assert (found["status"], found["faults"]) == ("done", 0)
    assert sizes(view) == [4, 2, 4]
    assert losses(folder) == pytest.approx(plain, rel=1e-4)


def test_a_run_that_begins_in_an_hour_of_one_waits_with_the_other_and_grows(
    run_file: MakeFile, limited: Callable[..., Run], clock: Clock
) -> None:
    clock.t = at("2026-11-18T12:10")
    run = limited()

    class Stopped(Day):
        def _day(self) -> None:
            while reached(self.folder) < 20:
                time.sleep(0.001)
            self.folder.request("stop")

    folder = start(run, listener=Stopped(clock, 0, 0, lambda folder: None))
    view = RunView(folder)
    assert (view.status, sizes(view)) == ("stopped", [1])
    (window,) = check_ledger(view)
    # From the first second: nothing of it is the start-up of a rank that was never to start.
    idle = view.account.by_rank[1].seconds
    assert idle[Cause.STARTUP] == 0.0
    assert window.start == view.account.invocations[0].start
    clock.t = at("2026-11-18T14:00")
    start(run)
    view = RunView(folder)
    assert (view.status, sizes(view)) == ("done", [1, 2])
    assert folder.read_launch_record().hour_layout == {}
    check_samples(folder)
    check_ledger(view)


def problem_texts(view: RunView) -> list[str]:
    return [line.text for line in RunFacts(view).problem_lines()]


def test_a_layout_that_cannot_shrink_is_told_before_it_starts(
    run_file: MakeFile, metered: None, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "limits.csv"
    rows = [f"{hour},{CHEAP},{10 if hour == 12 else 1e6}" for hour in range(24)]
    path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")
    run = load(run_file(**FEWER | {"layout.tensor": 2, "train.steps": 3}), fields(path))
    why = "1 of 24 hours have too little power for all 2 accelerators, and the run pauses in them"
    assert any(why in note for note in notes_of(verify(run)))
    told: list[str] = []

    class Told(Listener):
        def warning(self, words: str) -> None:
            told.append(words)

    assert summary(start(run, listener=Told()))["status"] == "done"
    assert any(why in words for words in told)


# The watch alone

ONE_OF_TWO = (PowerLevel(2, 1.0, 2_000.0), PowerLevel(1, 0.4, 1_100.0))


@pytest.fixture
def watched(tmp_path: Path, clock: Clock) -> tuple[HourWatch, Written]:
    """The watch of a run by hand, with power for one of its ranks from noon to one."""
    hours = (Hour(usd_per_kwh=CHEAP, grid_limit_w=1_500 if h == 12 else 1e6) for h in range(24))
    written = Written(tmp_path, PLAN | {"predicted": {"step_s": 30.0}})
    terms = HourTerms(ONE_OF_TWO, 900.0, 60.0)
    curve = HourlyCurve(tuple(hours), "daily")
    return HourWatch(written.folder, curve, terms, 30 * 86400.0, clock, stop_s=30.0), written


def test_ranks_end_before_an_hour_that_has_too_little_power(
    watched: tuple[HourWatch, Written], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, _ = watched
    monkeypatch.setattr(HourWatch, "_work_s", lambda self: 86_400.0)
    watch.level = 0
    for moment, level in (
        ("11:00:00", 0),
        ("11:59:29", 0),
        ("11:59:31", 1),  # their save takes as much as they do
        ("12:59:59", 1),
        ("13:00:00", 0),  # growing back is not early
    ):
        clock.t = at(f"2026-11-18T{moment}")
        assert watch.look().level == level, moment
        if level != watch.level:
            watch.ranks_ended()
            assert watch.look().level == level
            assert watch.begin()
    clock.t = at("2026-11-19T11:59:45")  # a rank failed: it does not start again for 15 seconds
    watch.ranks_ended()
    assert watch.look().level == 1


def test_a_layout_that_ran_out_of_memory_and_cannot_be_cut_down_pauses(
    watched: tuple[HourWatch, Written], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, written = watched
    monkeypatch.setattr(HourWatch, "_work_s", lambda self: 86_400.0)
    clock.t = at("2026-11-18T12:10")
    watch.ranks_ended()
    assert watch.look().level == 1
    whole = {"replicate": 1, "shard": 1, "tensor": 2, "microbatch": 4}
    written.folder.write_plan(written.folder.read_plan() | {"layout": whole})
    watch.ranks_ended()
    assert watch.look().level is None


def test_the_pace_on_some_ranks_is_not_that_of_all(watched: tuple[HourWatch, Written]) -> None:
    watch, written = watched
    written.supervisor(
        (0.0, "invocation", {"ranks": 2}),
        (1.0, "launch", {"attempt": 0, "ranks": 1}),
        (1.0, "resized", {"attempt": 0, "ranks": 1, "of": 2, "why": "an hour"}),
    )
    written.ranks(0, 1.0, range(1, 11), count=1)  # 2 s each
    assert watch._work_s() == pytest.approx(10 * 2.0 * 0.4)
    written.ranks(1, 100.0, range(11, 13), count=2)  # too few to say
    assert watch._work_s() == pytest.approx(8 * 2.0 * 0.4)
    written.ranks(2, 200.0, range(13, 21), count=2)
    written.folder.write_plan(written.folder.read_plan() | {"steps": 30})
    assert watch._work_s() == pytest.approx(10 * 2.0)
