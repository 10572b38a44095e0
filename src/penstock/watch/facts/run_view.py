"""A read-only view of one run folder. Reads files only, without torch.

`RunView` answers what the folder itself says. `RunFacts` (run_facts.py) adds what is computed from
it: the plan against the actual run, energy, costs and advice.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, cast

import numpy as np

from penstock.catalog import accelerators
from penstock.errors import PenstockError
from penstock.guard.checkpoints import best_first, newest_path, published_checkpoints
from penstock.launch.engines.engine import JobState
from penstock.launch.engines.table import job_of
from penstock.ledger.history import History, read_history
from penstock.ledger.journal.events import (
    ABSENT,
    AttemptLaunched,
    BatchSkipped,
    CheckpointLoaded,
    DataSkipped,
    EvaluateSpan,
    InvocationStarted,
    JournalEvent,
    LeaderLeft,
    PauseEnded,
    RankEnded,
    RunPaused,
    RunResized,
    StragglerChanged,
    TaskScoresEvent,
)
from penstock.ledger.journal.follow import JournalReader, reader_of
from penstock.ledger.journal.read import E, JournalLine, LineOf, lines_of
from penstock.ledger.journal.records import CURVE
from penstock.ledger.journal.values import number, whole
from penstock.ledger.merge import (
    Account,
    GroupTimeline,
    IdleTime,
    account_of,
    attempt_windows,
    group_timelines,
)
from penstock.ledger.over_time import CausesOverTime, causes_over_time, seconds_before
from penstock.ledger.scores import TaskScores
from penstock.meter.clock import now
from penstock.plan.job.layout import Layout
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.secret import redact_all
from penstock.watch.facts.downsample import not_superseded
from penstock.watch.facts.incidents import CLASSES, Incident, incidents
from penstock.watch.facts.task_scores import all_scores
from penstock.watch.style.text import dataset_text, finite, model_text


@dataclass(frozen=True)
class BestCheckpoint:
    """The checkpoint of a run with the lowest validation loss."""

    step: int
    val_loss: float | None
    checkpoint: str  # its folder


@dataclass
class RunView:
    """One reading of a run folder. Each part is read once, on first use.

    Make a new view to see what has changed.
    """

    folder: RunFolder
    # May use rollups of the journal until all of it is read; `account.exact` tells which.
    quick: bool = False

    # The run file and plan.json

    @cached_property
    def run(self) -> Run:
        return load(self.folder.run_file)

    @cached_property
    def run_or_none(self) -> Run | None:
        """The run; None if its file is half written, or of a version with other fields."""
        try:
            return self.run
        except PenstockError:
            return None

    @cached_property
    def launch(self) -> LaunchRecord:
        """The contents of plan.json, without secrets; the defaults if the file is damaged."""
        try:
            return LaunchRecord.from_json(redact_all(self.folder.read_plan()))
        except PenstockError:
            return LaunchRecord()

    @property
    def steps(self) -> int:
        return int(self.launch.steps)

    @property
    def model_text(self) -> str:
        """The size of the model in words; empty before the run is planned."""
        return model_text(self.launch) if self.launch.launched else ""

    @property
    def layout_text(self) -> str:
        """The layout in words; empty before the first launch."""
        layout = self.launch.layout
        return Layout(**layout).ways if layout else ""

    @property
    def dataset_text(self) -> str:
        return dataset_text(self.launch.dataset) if self.launch.dataset else ""

    @property
    def epoch_tokens(self) -> int | None:
        """Tokens of one pass over the data; None for a mixture, whose parts have different ones."""
        samples, each = self.launch.samples, self.launch.sample_tokens
        if not samples or not each or isinstance(self.launch.dataset, list):
            return None
        return int(samples) * int(each)

    # The journal

    @cached_property
    def job(self) -> JobState | None:
        """The state of the run's job as its engine tells it; None if no engine started the run."""
        return job_of(self.folder.path)

    @cached_property
    def running(self) -> bool:
        """Whether the run trains: on this machine, or by a job on others."""
        return self.folder.running() or (self.job is not None and self.job.phase == "running")

    @cached_property
    def _reader(self) -> JournalReader:
        _ = self.history  # updates the reader
        return reader_of(self.folder.journal)

    @cached_property
    def rank_events(self) -> list[JournalLine]:
        """All events that ranks wrote, by time."""
        with self._reader.lock:
            return self._reader.events()

    @cached_property
    def _rank_events_by_class(self) -> dict[type[JournalEvent], list[JournalLine]]:
        by_class: dict[type[JournalEvent], list[JournalLine]] = {}
        for line in self.rank_events:
            by_class.setdefault(type(line.event), []).append(line)
        return by_class

    def rank_events_of(self, *classes: type[E]) -> list[LineOf[E]]:
        """Return the lines with events of some classes that ranks wrote, by time.

        Much cheaper than a scan of `rank_events`: a thousand ranks write very many.
        """
        parts = cast(
            "list[list[LineOf[E]]]", [self._rank_events_by_class.get(cls, []) for cls in classes]
        )
        return parts[0] if len(parts) == 1 else sorted(chain(*parts), key=lambda line: line.t)

    @cached_property
    def rank_event_classes(self) -> list[type[JournalEvent]]:
        return list(self._rank_events_by_class)

    @cached_property
    def supervisor_events(self) -> list[JournalLine]:
        """All events that the supervisor wrote, by time."""
        with self._reader.lock:
            return self._reader.supervisor_events()

    def supervisor_events_of(self, cls: type[E]) -> list[LineOf[E]]:
        """Return the lines with events of one class that the supervisor wrote, by time."""
        return lines_of(self.supervisor_events, cls)

    def _records(self, kind: str, ranks: range | None = None) -> list[tuple[int, np.ndarray]]:
        """Return the attempt and the records of each file of a kind.

        With `ranks`, only of files whose first rank is one of them.
        """
        with self._reader.lock:
            return [
                (file.attempt, self._reader.records(file))
                for file in self._reader.files
                if file.kind == kind and (ranks is None or file.ranks.start in ranks)
            ]

    @cached_property
    def history(self) -> History:
        """The journal's invocations, attempts and spans, before causes are computed."""
        return read_history(self.folder.journal, now() if self.running else None, self.quick)

    @cached_property
    def _timelines(self) -> list[GroupTimeline]:
        return list(group_timelines(self.history))

    @cached_property
    def account(self) -> Account:
        """The time of the run by cause, in all and by rank."""
        return account_of(self.history, self._timelines)

    def over_time(self, bins: int = 240, ranks: range | None = None) -> CausesOverTime:
        """Split the time of all ranks, or of some, by cause and over time."""
        return causes_over_time(self.history, bins, ranks, self._timelines)

    def rank_seconds_before(self, t: np.ndarray, ranks: range | None = None) -> np.ndarray:
        """Return rank-seconds by cause before these moments: [moments, causes]."""
        return seconds_before(self._timelines, t, ranks)

    @property
    def _last_attempt(self) -> int | None:
        return max((a for i in self.account.invocations for a in i.attempts), default=None)

    @property
    def status(self) -> str:
        """running, queued, done, stopped, stopped early, failed or new.

        killed if no end was written; left on a host that handed the run to others.
        """
        if self.running:
            return "running"
        if self.job and self.job.phase == "queued":
            return "queued"
        invocations = self.account.invocations
        if not invocations:
            return "new"
        events = self.supervisor_events
        left = bool(events) and isinstance(events[-1].event, LeaderLeft)
        return invocations[-1].result or ("left" if left else "killed")

    @property
    def pause(self) -> str:
        """`paused until 06:00 (0.31 USD per kWh)` while the run waits for its hour; else empty."""
        last = self._newest(RunPaused, PauseEnded, AttemptLaunched, InvocationStarted)
        return str(last.why) if isinstance(last, RunPaused) else ""

    @property
    def fewer(self) -> str:
        """`on 1 of 2 accelerators until 06:00 (…)` while an hour lets only some of them work."""
        last = self._newest(RunResized, RunPaused, AttemptLaunched, InvocationStarted)
        return str(last.why) if isinstance(last, RunResized) and last.ranks < last.of else ""

    def _newest(self, *classes: type[JournalEvent]) -> JournalEvent | None:
        """Return the supervisor's newest event of these classes, while the run is running."""
        events = (line.event for line in reversed(self.supervisor_events)) if self.running else ()
        return next((event for event in events if isinstance(event, classes)), None)

    @cached_property
    def fewer_attempts(self) -> frozenset[int]:
        """The attempts that had fewer ranks than the run because of their hour."""
        lines = self.supervisor_events_of(RunResized)
        found = (line.attempt for line in lines if line.event.ranks < line.event.of)
        return frozenset(attempt for attempt in found if attempt is not None)

    @property
    def fewer_s(self) -> float:
        """Seconds in attempts that had fewer ranks than the run because of their hour."""
        total_s = 0.0
        for invocation, attempts in self.history:
            parts = (
                p for p in attempt_windows(invocation, attempts) if not isinstance(p, IdleTime)
            )
            for attempt, part in zip(attempts, parts, strict=True):
                total_s += part.end - part.start if attempt.number in self.fewer_attempts else 0.0
        return total_s

    @property
    def paused_s(self) -> float:
        """Seconds that the run has waited for better hours."""
        pauses = (one for invocation in self.account.invocations for one in invocation.pauses)
        return sum(one.end - one.start for one in pauses)

    @property
    def resumed_from(self) -> int | None:
        """The step that the last invocation first resumed from, at its start or after a fault."""
        began = self.account.invocations[-1].start if self.account.invocations else 0.0
        resumed = [line for line in self.rank_events_of(CheckpointLoaded) if line.t >= began]
        return resumed[0].event.step if resumed else None

    @property
    def weights_hash(self) -> str | None:
        """The hash of the weights at the end of the last attempt; None before that."""
        lines = self.rank_events_of(RankEnded)
        ends = [line.event for line in lines if line.attempt == self._last_attempt]
        hashes = [end.weights_hash for end in ends if end.weights_hash is not ABSENT]
        return str(hashes[0]) if hashes else None

    @property
    def prompt(self) -> str | None:
        """The newest prompt that the model was given for a sample."""
        events = (line.event for line in reversed(self.rank_events_of(EvaluateSpan)))
        return next((event.prompt for event in events if event.prompt is not ABSENT), None)

    @property
    def sample(self) -> str | None:
        """The newest text that the model wrote."""
        events = (line.event for line in reversed(self.rank_events_of(EvaluateSpan)))
        return next((event.sample for event in events if event.sample is not ABSENT), None)

    # Training

    @cached_property
    def curve(self) -> np.ndarray:
        """The training curve (`CURVE` records), without steps that a restart took back."""
        files = self._records("curve")
        points = np.concatenate([np.empty(0, CURVE), *(part for _, part in files)])
        if (points["step"][1:] > points["step"][:-1]).all():
            return points
        # In live mode the rank that reports changes within an attempt.
        attempts = np.repeat([attempt for attempt, _ in files], [len(part) for _, part in files])
        points = points[np.lexsort((points["t"], attempts))]
        return points[not_superseded(points["step"])]

    @cached_property
    def step(self) -> int:
        """The last finished step, also if its batch was skipped."""
        step = int(self.curve["step"][-1]) if len(self.curve) else 0
        left_out = {line.event.step for line in self.rank_events_of(BatchSkipped)}
        while step + 1 in left_out:
            step += 1
        return step

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return int(self.curve["tokens"][-1]) if len(self.curve) else 0

    @property
    def passes(self) -> float | None:
        """Passes over the data so far."""
        if not self.epoch_tokens or not len(self.curve):
            return None
        return float(self.curve["tokens"][-1]) / self.epoch_tokens

    @property
    def loss(self) -> float | None:
        """Mean loss of the last ten steps: one batch alone is noisy."""
        return finite(self.curve["loss"][-10:].mean()) if len(self.curve) else None

    @cached_property
    def validation(self) -> list[tuple[int, float]]:
        """(step, loss on the held-out samples), by step."""
        events = [line.event for line in self.rank_events_of(EvaluateSpan)]
        pairs = [(whole(event.step), number(event.val_loss)) for event in events]
        by_step = {step: loss for step, loss in pairs if step is not None and loss is not None}
        return sorted((step, loss) for step, loss in by_step.items() if step <= self.step)

    @property
    def validation_loss(self) -> float | None:
        """Loss of the last evaluation."""
        return finite(self.validation[-1][1]) if self.validation else None

    @cached_property
    def task_scores(self) -> tuple[TaskScores, ...]:
        """Scores of benchmark tasks, by step."""
        return all_scores(self.folder, self.rank_events_of(TaskScoresEvent), self.step)

    # Speed

    @cached_property
    def step_s(self) -> float | None:
        """Median step time of the last attempt with steps: machines and layouts change."""
        for _, records in sorted(self._records("steps", range(1)), key=lambda file: -file[0]):
            if len(records):
                return float(np.median(records["total"]))
        return None

    @cached_property
    def whole_step_s(self) -> float | None:
        """Median step time of the last attempt on all ranks, which is what was planned."""
        for attempt, records in sorted(self._records("steps", range(1)), key=lambda file: -file[0]):
            if len(records) and attempt not in self.fewer_attempts:
                return float(np.median(records["total"]))
        return None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second while stepping, over all ranks."""
        if not self.step_s or not self.launch.batch_tokens:
            return None
        return float(self.launch.batch_tokens / self.step_s)

    @property
    def mfu(self) -> float | None:
        """Share of the accelerator's published peak; None for a device not in the catalog."""
        device = accelerators.for_device(str(self.launch.device_name))
        work, speed = self.launch.flops_per_token, self.tokens_per_s
        precision = self.run_or_none.train.precision if self.run_or_none else ""
        peak = device.peak_flops(precision) if device and precision in ("fp32", "bf16") else None
        if not (peak and work and speed):
            return None
        at_work = self.launch.hour_layout
        ranks = Layout(**at_work).ranks if at_work else self.launch.ranks
        return float(work * speed / (peak * ranks))

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end of a running run, at the pace of its steps."""
        if not self.running or not self.step_s:
            return None
        return self.step_s * (self.steps - self.step)

    # Problems

    @cached_property
    def stragglers(self) -> list[dict[str, Any]]:
        """Ranks that slowed the others down at the last check of the last attempt, by rank."""
        lines = self.supervisor_events_of(StragglerChanged)
        changes = [line.event for line in lines if line.attempt == self._last_attempt]
        last = {change.rank: change for change in changes}
        return [{"rank": r, "factor": last[r].factor} for r in sorted(last) if last[r].slow]

    @cached_property
    def skipped_blocks(self) -> list[LineOf[DataSkipped]]:
        """Damaged blocks of the dataset that are not trained on, each once."""
        lines = self.rank_events_of(DataSkipped)
        return list({(b.event.dataset, b.event.shard, b.event.block): b for b in lines}.values())

    @cached_property
    def incidents(self) -> list[Incident]:
        """Anomalies that the anomaly guard found, by time."""
        return incidents(self.rank_events_of(*CLASSES))

    @property
    def fault_count(self) -> int:
        """Faults after which the supervisor restarted the ranks or gave up."""
        return sum(len(invocation.faults) for invocation in self.account.invocations)

    # Checkpoints

    @property
    def newest_checkpoint(self) -> str | None:
        return newest_path(self.folder.checkpoints)

    @cached_property
    def best_checkpoint(self) -> BestCheckpoint | None:
        """The checkpoint with the lowest validation loss, if the run keeps it."""
        if self.run_or_none is None or not self.run_or_none.evaluate.keep_best:
            return None
        for found in best_first(published_checkpoints(self.folder.checkpoints)):
            if (loss := found.validation_loss) is not None:
                return BestCheckpoint(found.step, finite(loss), str(found.path))
        return None
