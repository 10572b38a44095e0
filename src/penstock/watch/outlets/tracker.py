"""The values and events of a run that experiment trackers are sent. Each tracker translates them.

`TrackerOutlet` is the outlet; W&B, TensorBoard, MLflow and Trackio are classes of the protocol
`Tracker`, one file each. All of them get the same values under the same names.
"""

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from penstock import secret
from penstock.errors import PenstockError
from penstock.ledger.journal.events import EvaluateSpan, PairsRewarded, TaskScoresEvent
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.values import number, whole
from penstock.meter.clock import now
from penstock.policy.restart import WELL
from penstock.run.save import to_table
from penstock.watch.facts.deliveries import Delivery, delivered_before, run_id
from penstock.watch.facts.rewards import Rewards, held_out_rewards, training_rewards
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.points import first_points, new_points
from penstock.watch.outlets.waiting import ServiceWait
from penstock.watch.style.text import finite

KEPT_STEPS = 50_000  # how far back a step that is made again is known
FIELDS = ("loss", "tokens", "grad_norm", "learning_rate")
SENT_LATER = "the next `penstock train` of the run sends the rest"


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker knows it: the same in every launch of the run."""

    id: str
    name: str  # of the run; `--fresh` makes another run of the same name
    folder: Path
    config: dict[str, Any]  # the run file and the plan's main figures, without secrets

    @property
    def unique_name(self) -> str:
        """The name for a tracker that identifies runs by name."""
        return f"{self.name}-{self.id[:6]}"


@dataclass(frozen=True)
class LoggedValues:
    """Values of one step, by name; `t` is in unix seconds."""

    step: int
    t: float
    values: dict[str, float]


class Tracker(Protocol):
    """A client of one experiment tracker. It may block and raise, as an `Outlet` may."""

    name: str

    @property
    def wait(self) -> ServiceWait:
        """Since when the client waits for its service."""

    @property
    def unsent(self) -> str:
        """The command that sends what the client keeps on this disk; empty if it keeps nothing."""

    def begin(self, run: TrackedRun) -> None:
        """Open the tracker's run, or continue it if it is there."""

    def rewind(self, step: int) -> None:
        """Prepare for other values of steps from `step` on, which were sent before."""

    def log(self, rows: Sequence[LoggedValues]) -> None:
        """Send values."""

    def alert(self, alert: Alert) -> None:
        """Send an event of the run."""

    def summarize(self, values: dict[str, float | str]) -> None:
        """Send the latest values of the whole run, if the tracker shows such."""

    def end(self, result: str, well: bool) -> None:
        """Send what is left and close the tracker's run."""


def tracked_run(view: RunView) -> TrackedRun:
    config = {**secret.visible_table(to_table(view.run)), "plan": _plan_values(view)}
    return TrackedRun(run_id(view.folder), view.folder.name, view.folder.path, config)


def flat_config(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a config as one level of texts: `train.steps` → `100`. Values not set are left out."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= flat_config(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def require_package(package: str, written: bool | str) -> None:
    """Raise PenstockError, with the line that installs it, for a client that is missing.

    The package, its extra and its field of `[log]` have one name.
    """
    if importlib.util.find_spec(package) is None:
        field = f"log.{package}"
        shown = "true" if isinstance(written, bool) else secret.visible(field, written)
        raise PenstockError(
            f"{field} = {shown}: the package {package} is not installed; "
            f"`pip install 'penstock[{package}]'`, or remove the field"
        )


@dataclass
class SentSteps:
    """The steps that a tracker has, and their losses."""

    last: int = 0
    _losses: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, loss: float) -> Literal["new", "same", "other"]:
        """Add a step; `other`: it was sent with another loss, so later ones are made again too."""
        known = self._losses.get(step)
        if known is not None and (known == loss or (math.isnan(known) and math.isnan(loss))):
            return "same"
        again = step <= self.last
        if again:
            self._losses = {s: kept for s, kept in self._losses.items() if s < step}
        self._losses[step], self.last = loss, step
        if len(self._losses) > KEPT_STEPS:
            del self._losses[next(iter(self._losses))]
        return "other" if again else "new"


@dataclass
class TrackerOutlet:
    """Decides what a tracker is sent, and when.

    A rollback or a resume makes steps again. Those with the same loss are not sent again; from the
    first with another loss on, all are. `delivered` is what earlier launches have sent; `begin`
    sends what they have not. Without it, all before `first_attempt` counts as sent.
    """

    tracker: Tracker
    first_attempt: int = 0
    delivered: Delivery | None = None
    _sent: SentSteps = field(default_factory=SentSteps)
    _validated: dict[int, float] = field(default_factory=dict)
    _rewarded: dict[int, dict[str, float]] = field(default_factory=dict)  # of pairs, by step
    _scored: int = -1  # step of the last benchmark tasks that were sent

    def __post_init__(self) -> None:
        self.name = self.tracker.name

    @property
    def wait(self) -> ServiceWait:
        return self.tracker.wait

    @property
    def problem(self) -> str:
        return ""  # a call that fails raises

    @property
    def kept(self) -> bool:
        """Whether the client keeps on this disk what its service did not take."""
        return bool(self.tracker.unsent)

    @property
    def remedy(self) -> str:
        command = self.tracker.unsent
        return f"`{command}` sends the rest" if command else SENT_LATER

    def begin(self, view: RunView) -> None:
        sent = self.delivered or delivered_before(view, self.first_attempt)
        files = journal_files(view.folder.journal, "curve")
        earlier = [(f.attempt, f.path) for f in files if f.attempt < self.first_attempt]
        for _, points in first_points(earlier, sent.points):
            for point in points[-KEPT_STEPS:]:
                self._sent.add(int(point["step"]), float(point["loss"]))
        for line in view.rank_events_of(EvaluateSpan):
            step, loss = whole(line.event.step), number(line.event.val_loss)
            if step is not None and loss is not None and sent.has(line):
                self._validated[step] = loss
        for rewarded in view.rank_events_of(PairsRewarded):
            one = Rewards.of(rewarded.event)
            if one is not None and sent.has(rewarded):
                self._rewarded[one.step] = reward_values("rewards", one)
        for scored in view.rank_events_of(TaskScoresEvent):
            if sent.has(scored):
                self._scored = max(self._scored, whole(scored.event.step) or 0)
        self.tracker.begin(tracked_run(view))
        read = {path: sent.points.get(path.name, 0) for _, path in earlier}
        for _, points in new_points(earlier, read):
            self.send_points(points)

    def send_points(self, points: np.ndarray) -> None:
        rows: list[LoggedValues] = []
        for point in points:
            step, loss = int(point["step"]), float(point["loss"])
            what = self._sent.add(step, loss)
            if what == "same":
                continue
            if what == "other":
                self._send(rows)
                rows = []
                self.tracker.rewind(step)
                self._validated = {s: v for s, v in self._validated.items() if s < step}
                self._rewarded = {s: v for s, v in self._rewarded.items() if s < step}
            values = {f"train/{name}": finite(point[name]) for name in FIELDS}
            rows.append(LoggedValues(step, float(point["t"]), _known(values)))
        self._send(rows)

    def send_summary(self, view: RunView) -> None:
        t = now()
        rows = self._new_validations(view, t)
        rows += self._new_rewards(view, t)
        rows += self._new_scores(view, t)
        values = run_values(view)
        self._send([*rows, LoggedValues(self._sent.last, t, values)])
        self.tracker.summarize({**values, "status": view.status, "steps": view.step})

    def _new_validations(self, view: RunView, t: float) -> list[LoggedValues]:
        """Return the evaluations that the tracker does not have yet."""
        new = [(step, loss) for step, loss in view.validation if self._validated.get(step) != loss]
        self._validated.update(new)
        rewards = {one.step: one for one in held_out_rewards(view)} if new else {}
        rows = []
        for step, loss in new:
            values = _known({"validation/loss": finite(loss)})
            if step in rewards:
                values |= reward_values("validation_rewards", rewards[step])
            if values:
                rows.append(LoggedValues(step, _t_of(view, step, t), values))
        return rows

    def _new_rewards(self, view: RunView, t: float) -> list[LoggedValues]:
        """Return the rewards of the pairs of steps, of which the tracker does not have them yet."""
        found = {one.step: reward_values("rewards", one) for one in training_rewards(view)}
        new = {step: one for step, one in found.items() if self._rewarded.get(step) != one}
        self._rewarded |= new
        times = dict(zip(view.curve["step"].tolist(), view.curve["t"].tolist(), strict=True))
        return [LoggedValues(step, times.get(step, t), one) for step, one in new.items()]

    def _new_scores(self, view: RunView, t: float) -> list[LoggedValues]:
        """Return the scores of benchmark tasks that the tracker does not have yet."""
        rows = []
        for found in view.task_scores:
            if found.during and found.step is not None and found.step > self._scored:
                self._scored = found.step
                values = _known({f"tasks/{one.name}": one.value for one in found.scores})
                rows.append(LoggedValues(found.step, _t_of(view, found.step, t), values))
        return rows

    def send_alert(self, alert: Alert) -> None:
        self.tracker.alert(alert)

    def close(self, result: str) -> None:
        self.tracker.end(result, result in WELL)

    def _send(self, rows: list[LoggedValues]) -> None:
        if rows:
            self.tracker.log(rows)


def run_values(view: RunView) -> dict[str, float]:
    """Return the values of a whole run: speed, shares, seconds by cause, energy and cost."""
    ledger = view.account.ledger
    values: dict[str, float | None] = {
        "speed/tokens_per_s": view.tokens_per_s,
        "speed/mfu": view.mfu,
        "speed/step_s": view.step_s,
        "share/useful": ledger.useful,
        "share/effective": ledger.effective,
        **{f"rank_s/{cause}": seconds for cause, seconds in ledger.seconds.items()},
    }
    if costs := RunFacts(view).costs:
        values |= {"energy/kwh": costs.kwh, "cost/usd": costs.usd, "cost/gco2e": costs.gco2e}
    return _known(values)


def reward_values(group: str, rewards: Rewards) -> dict[str, float]:
    """Return the rewards of pairs, their margin and accuracy, by names of a group."""
    names = ("chosen", "rejected", "margin", "accuracy")
    return _known({f"{group}/{name}": finite(getattr(rewards, name)) for name in names})


def say_where(say: Callable[[str], None], name: str, where: object) -> None:
    """Say where the run can be seen."""
    say(f"{name}: {secret.redact(str(where))}")


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}


def _t_of(view: RunView, step: int, default: float) -> float:
    found = view.curve["t"][view.curve["step"] == step]
    return float(found[-1]) if len(found) else default


def _plan_values(view: RunView) -> dict[str, Any]:
    launch = view.launch
    return {
        "machine": launch.machine or None,
        "layout": launch.layout or None,
        "ranks": launch.ranks or None,
        "params": launch.params,
        "dataset": launch.dataset,
        "step_s": launch.predicted.get("step_s"),
    }
