"""What trackers are sent: each step once, and all steps again from the first that differs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.ledger.journal.records import CURVE
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.tracker import (
    LoggedValues,
    TrackedRun,
    TrackerOutlet,
    flat_config,
    require_package,
    tracked_run,
)
from penstock.watch.outlets.waiting import ServiceWait
from tracked_launches import launched, logged_folder


class KeptTracker:
    """A tracker that holds one value for a step, as TensorBoard does."""

    name, unsent = "kept", ""

    def __init__(self) -> None:
        self.wait = ServiceWait()
        self.steps: dict[int, float] = {}
        self.validation: dict[int, float] = {}
        self.rows: list[LoggedValues] = []
        self.summary: dict[str, float | str] = {}

    def begin(self, run: TrackedRun) -> None:
        self.run = run

    def rewind(self, step: int) -> None:
        self.steps = {s: loss for s, loss in self.steps.items() if s < step}

    def log(self, rows: Sequence[LoggedValues]) -> None:
        self.rows += rows
        for row in rows:
            if "train/loss" in row.values:
                assert row.step not in self.steps, "the step was sent twice"
                self.steps[row.step] = row.values["train/loss"]
            if "validation/loss" in row.values:
                assert row.step not in self.validation, "the evaluation was sent twice"
                self.validation[row.step] = row.values["validation/loss"]

    def alert(self, alert: Alert) -> None:
        self.rows.append(LoggedValues(alert.step, alert.t, {}))

    def summarize(self, values: dict[str, float | str]) -> None:
        self.summary = values

    def end(self, result: str, well: bool) -> None:
        self.ended = result, well


def points(losses: Sequence[tuple[int, float]]) -> np.ndarray:
    made = np.zeros(len(losses), CURVE)
    made["step"] = [step for step, _ in losses]
    made["loss"] = [loss for _, loss in losses]
    return made


@given(
    attempts=st.lists(
        st.tuples(st.integers(1, 8), st.lists(st.sampled_from([1.0, 2.0]), max_size=8)),
        max_size=5,
    ),
    parts=st.integers(1, 4),
)
def test_a_tracker_ends_with_the_steps_of_the_last_attempts(
    attempts: list[tuple[int, list[float]]], parts: int
) -> None:
    """However the run went back, and however its points were read."""
    tracker = KeptTracker()
    outlet = TrackerOutlet(tracker)
    expected: dict[int, float] = {}
    made: list[tuple[int, float]] = []
    for start, losses in attempts:
        first = min(start, max(expected, default=0) + 1)
        for step, loss in enumerate(losses, first):
            made.append((step, loss))
            if step in expected and expected[step] != loss:
                expected = {s: kept for s, kept in expected.items() if s < step}
            expected[step] = loss
    for begin in range(0, len(made), parts):
        outlet.send_points(points(made[begin : begin + parts]))
    assert tracker.steps == expected


def test_steps_without_a_finite_loss_are_sent_once_and_without_it() -> None:
    tracker = KeptTracker()
    outlet = TrackerOutlet(tracker)
    outlet.send_points(points([(1, np.nan), (2, 3.0), (1, np.nan), (2, 3.0)]))
    assert [row.step for row in tracker.rows] == [1, 2]
    assert "train/loss" not in tracker.rows[0].values
    assert tracker.rows[0].values["train/grad_norm"] == 0.0


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file)


def test_a_later_launch_sends_only_what_is_new(folder: RunFolder) -> None:
    """The losses and evaluations of earlier launches are read from the journal."""
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", validation={2: 4.5})
    launched(folder, 1, {3: 3.5, 4: 3.0}, "done", t=2000.0, validation={4: 3.25})
    tracker = KeptTracker()
    outlet = TrackerOutlet(tracker, first_attempt=1)
    outlet.begin(RunView(folder))
    outlet.send_points(points([(3, 3.5), (4, 3.0)]))
    outlet.send_summary(RunView(folder))
    assert tracker.steps == {4: 3.0}
    assert tracker.validation == {4: 3.25}
    assert tracker.run.id == tracked_run(RunView(folder)).id
    assert tracker.summary["status"] == "done"
    last = tracker.rows[-1]
    assert last.step == 4
    assert last.values["rank_s/compute"] > 0
    assert last.values["speed/tokens_per_s"] > 0


def test_steps_that_differ_from_an_earlier_launch_are_sent_again(folder: RunFolder) -> None:
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed")
    tracker = KeptTracker()
    tracker.steps = {1: 5.0, 2: 4.0, 3: 3.5}  # as the earlier launch left it
    outlet = TrackerOutlet(tracker, first_attempt=1)
    outlet.begin(RunView(folder))
    outlet.send_points(points([(2, 4.25), (3, 3.5)]))
    assert tracker.steps == {1: 5.0, 2: 4.25, 3: 3.5}
    outlet.close("killed")
    assert tracker.ended == ("killed", False)


def rows_with(tracker: KeptTracker, name: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[name]) for row in tracker.rows if name in row.values]


def test_rewards_of_pairs_are_sent_once_for_each_step(folder: RunFolder) -> None:
    """Also those that a later launch makes again, if they differ; not those before a rewind."""
    first = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, 0.0, 1.0)}
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", validation={2: 4.5}, rewards=first)
    tracker = KeptTracker()
    outlet = TrackerOutlet(tracker)
    outlet.begin(RunView(folder))
    outlet.send_points(points([(1, 5.0), (2, 4.0), (3, 3.5)]))
    for _ in range(2):
        outlet.send_summary(RunView(folder))
    assert rows_with(tracker, "rewards/chosen") == [(1, 0.0), (2, 0.5), (3, 0.5)]
    assert rows_with(tracker, "rewards/rejected") == [(1, 0.0), (2, 0.25), (3, 0.0)]
    assert rows_with(tracker, "rewards/margin") == [(1, 0.0), (2, 0.25), (3, 0.5)]
    assert rows_with(tracker, "rewards/accuracy") == [(1, 0.0), (2, 0.75), (3, 1.0)]
    assert rows_with(tracker, "validation_rewards/margin") == [(2, 0.25)]
    times = {row.step: row.t for row in tracker.rows if "rewards/chosen" in row.values}
    assert times == {1: 1002.0, 2: 1003.0, 3: 1004.0}  # of the steps

    again = {2: (0.5, 0.25, 0.75), 3: (0.75, 0.0, 1.0), 4: (1.0, 0.0, 1.0)}
    launched(folder, 1, {2: 4.0, 3: 3.25, 4: 3.0}, "done", t=2000.0, rewards=again)
    later = KeptTracker()
    outlet = TrackerOutlet(later, first_attempt=1)
    outlet.begin(RunView(folder))
    outlet.send_points(points([(2, 4.0), (3, 3.25), (4, 3.0)]))
    outlet.send_summary(RunView(folder))
    assert rows_with(later, "rewards/chosen") == [(3, 0.75), (4, 1.0)]


def test_rewards_after_a_rewind_are_sent_again(folder: RunFolder) -> None:
    """A tracker drops all values from there on, also those that come out the same."""
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75)}
    launched(folder, 0, {1: 5.0, 2: 4.0}, "failed", rewards=rewards)
    tracker = KeptTracker()
    outlet = TrackerOutlet(tracker)
    outlet.send_points(points([(1, 5.0), (2, 4.0)]))
    outlet.send_summary(RunView(folder))
    outlet.send_points(points([(2, 4.25)]))
    outlet.send_summary(RunView(folder))
    assert [step for step, _ in rows_with(tracker, "rewards/chosen")] == [1, 2, 2]


def test_the_config_is_that_of_the_run_file_in_one_level() -> None:
    config = {"train": {"steps": 4, "betas": [0.9, 0.95]}, "name": "x", "none": None}
    assert flat_config(config) == {"train.steps": "4", "train.betas": "[0.9, 0.95]", "name": "x"}


@pytest.mark.parametrize(
    ("package", "written"),
    [("tensorboard", True), ("mlflow", "http://user:pw@host"), ("trackio", "p"), ("wandb", "p")],
)
def test_a_missing_client_is_refused_with_the_line_that_installs_it(
    package: str, written: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PenstockError, match=rf"pip install 'penstock\[{package}\]'") as refused:
        require_package(package, written)
    assert str(refused.value).startswith(f"log.{package} = ")
    assert "pw" not in str(refused.value)


def test_values_before_the_first_step_have_a_time(folder: RunFolder) -> None:
    """TensorBoard and MLflow draw over it."""
    tracker = KeptTracker()
    TrackerOutlet(tracker).send_summary(RunView(folder))
    assert [row.t > 1.7e9 for row in tracker.rows] == [True]
