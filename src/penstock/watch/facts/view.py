"""What a run folder says, gathered for whoever shows it. Reads files only; no torch."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from penstock.catalog import accelerators
from penstock.errors import PenstockError
from penstock.guard.format.published import best_first, newest_path, published_checkpoints
from penstock.ledger.history import History, read_history
from penstock.ledger.journal.follow import JournalReader, reader_of
from penstock.ledger.journal.read import Event
from penstock.ledger.journal.records import CURVE
from penstock.ledger.merge import Account, GroupTimeline, account_of, group_timelines
from penstock.ledger.over_time import CausesOverTime, causes_over_time, seconds_before
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.secret import redact_all
from penstock.watch.facts.incidents import KINDS, incidents
from penstock.watch.style.text import finite


@dataclass(frozen=True)
class Best:
    """The best checkpoint of a run."""

    step: int
    val_loss: float | None
    checkpoint: str  # its folder


@dataclass
class View:
    """One reading of a run; make a new one to see what has changed."""

    folder: RunFolder
    quick: bool = False  # may answer by rollups (`account.exact` says so) until all is read

    @cached_property
    def run(self) -> Run:
        return load(self.folder.run_file)

    @cached_property
    def known_run(self) -> Run | None:
        """None where the file is half written, or of a version that had other fields."""
        try:
            return self.run
        except PenstockError:
            return None

    @cached_property
    def plan(self) -> dict[str, Any]:
        try:
            return redact_all(self.folder.read_plan())
        except PenstockError:  # damaged
            return {}

    @cached_property
    def running(self) -> bool:
        return self.folder.running()

    @cached_property
    def _reader(self) -> JournalReader:
        _ = self.history  # looks at what is there
        return reader_of(self.folder.journal)

    @cached_property
    def events(self) -> list[Event]:
        """What the ranks wrote, by time."""
        with self._reader.lock:
            return self._reader.events()

    @cached_property
    def _by_kind(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.kind, []).append(event)
        return found

    def told(self, *kinds: str) -> list[Event]:
        """What the ranks wrote of some kinds, by time. A thousand ranks write a great many lines:
        whoever looks every second looks at few of them."""
        found = [self._by_kind.get(kind, []) for kind in kinds]
        return found[0] if len(found) == 1 else sorted(chain(*found), key=lambda e: e.t)

    @cached_property
    def kinds(self) -> list[str]:
        """That the ranks wrote."""
        return list(self._by_kind)

    @cached_property
    def supervisor(self) -> list[Event]:
        """What the supervisor wrote."""
        with self._reader.lock:
            return self._reader.supervisor_events()

    def supervised(self, kind: str) -> list[Event]:
        """What the supervisor wrote of one kind, by time."""
        return [event for event in self.supervisor if event.kind == kind]

    def _records(self, kind: str, ranks: range | None = None) -> list[tuple[int, np.ndarray]]:
        """The files of a kind, with their attempts; those of all ranks, or that begin in some."""
        with self._reader.lock:
            return [
                (file.attempt, self._reader.records(file))
                for file in self._reader.files
                if file.kind == kind and (ranks is None or file.ranks.start in ranks)
            ]

    @cached_property
    def stragglers(self) -> list[dict[str, Any]]:
        """Ranks that held the others up when the last attempt was looked at last."""
        told = [e for e in self.supervised("straggler") if e.attempt == self._last_attempt]
        last = {e.payload["rank"]: e.payload for e in told}
        found = [{"rank": r, "factor": p["factor"]} for r, p in last.items() if p["slow"]]
        return sorted(found, key=lambda slow: int(slow["rank"]))

    @property
    def _last_attempt(self) -> int | None:
        return max((a for i in self.account.invocations for a in i.attempts), default=None)

    @cached_property
    def history(self) -> History:
        """What the journal says, before anything is made of it."""
        return read_history(self.folder.journal, now() if self.running else None, self.quick)

    @cached_property
    def _lines(self) -> list[GroupTimeline]:
        return list(group_timelines(self.history))

    @cached_property
    def account(self) -> Account:
        return account_of(self.history, self._lines)

    def over_time(self, bins: int = 240, ranks: range | None = None) -> CausesOverTime:
        """Where the time of all ranks, or of some, went from the first start to the last end."""
        return causes_over_time(self.history, bins, ranks, self._lines)

    def done(self, t: np.ndarray, ranks: range | None = None) -> np.ndarray:
        """Rank-seconds by cause before these moments: [moments, causes]."""
        return seconds_before(self._lines, t, ranks)

    @cached_property
    def curve(self) -> np.ndarray:
        """The training curve; after a restart, what was lost is cut off and counts no more."""
        files = self._records("curve")
        points = np.concatenate([np.empty(0, CURVE), *(part for _, part in files)])
        if (points["step"][1:] > points["step"][:-1]).all():
            return points
        # In live mode the rank that reports changes within an attempt.
        attempts = np.repeat([attempt for attempt, _ in files], [len(part) for _, part in files])
        points = points[np.lexsort((points["t"], attempts))]
        lowest_after = np.minimum.accumulate(points["step"][::-1])[::-1][1:]
        return points[np.append(points["step"][:-1] < lowest_after, True)[: len(points)]]

    @cached_property
    def validation(self) -> list[tuple[int, float]]:
        """(step, loss on the held-out samples), by step."""
        told = [(e.whole("step"), e.number("val_loss")) for e in self.told("evaluate")]
        found = {step: loss for step, loss in told if step is not None and loss is not None}
        return sorted((step, loss) for step, loss in found.items() if step <= self.step)

    @property
    def status(self) -> str:
        """running, done, stopped, failed, or killed when nobody wrote an end; left, on a host that
        left it to others."""
        if self.running:
            return "running"
        invocations = self.account.invocations
        if not invocations:
            return "new"
        left = bool(self.supervisor) and self.supervisor[-1].kind == "left"
        return invocations[-1].result or ("left" if left else "killed")

    @cached_property
    def step(self) -> int:
        """The last one that was passed, with or without its batch."""
        step = int(self.curve["step"][-1]) if len(self.curve) else 0
        left_out = {e.payload["step"] for e in self.told("batch_skipped")}
        while step + 1 in left_out:
            step += 1
        return step

    @property
    def steps(self) -> int:
        return int(self.plan.get("steps") or 0)

    @property
    def loss(self) -> float | None:
        """Mean of the last steps: one batch alone says little."""
        return finite(self.curve["loss"][-10:].mean()) if len(self.curve) else None

    @cached_property
    def step_s(self) -> float | None:
        """Median time of a step in the last attempt that made any: machines and layouts change."""
        for _, records in sorted(self._records("steps", range(1)), key=lambda found: -found[0]):
            if len(records):
                return float(np.median(records["total"]))
        return None

    @property
    def tokens_per_s(self) -> float | None:
        """While stepping, over all ranks."""
        if not self.step_s or "batch_tokens" not in self.plan:
            return None
        return float(self.plan["batch_tokens"] / self.step_s)

    @property
    def mfu(self) -> float | None:
        """Share of the accelerator's published peak; None for a device not in the catalog."""
        device = accelerators.for_device(str(self.plan.get("device_name", "")))
        work, speed = self.plan.get("flops_per_token"), self.tokens_per_s
        precision = self.known_run.train.precision if self.known_run else ""
        peak = device.peak_flops(precision) if device and precision in ("fp32", "bf16") else None
        if not (peak and work and speed):
            return None
        return float(work * speed / (peak * self.plan["ranks"]))

    @property
    def left_s(self) -> float | None:
        """Time to the end of a running run, at the pace of its steps."""
        if not self.running or not self.step_s:
            return None
        return self.step_s * (self.steps - self.step)

    @cached_property
    def skipped(self) -> list[dict[str, Any]]:
        """Damaged blocks that the run goes on without: each once, whoever met it and how often."""
        found = [e.payload for e in self.told("data_skipped")]
        return list({(one["dataset"], one["shard"], one["block"]): one for one in found}.values())

    @cached_property
    def incidents(self) -> list[dict[str, Any]]:
        """What the sentinels found."""
        return incidents(self.told(*KINDS))

    def last_of(self, key: str) -> object | None:
        """The newest value of a payload key that any rank wrote."""
        return next((e.payload[key] for e in reversed(self.events) if key in e.payload), None)

    @property
    def resumed_from(self) -> int | None:
        """The step that the last invocation first went on from, at its start or after a fault."""
        began = self.account.invocations[-1].start if self.account.invocations else 0.0
        found = [e for e in self.told("resumed") if e.t >= began]
        return int(str(found[0].payload["step"])) if found else None

    @property
    def weights_hash(self) -> str | None:
        """Of the weights that the last attempt ended with; None while it has not."""
        ends = [e for e in self.told("end") if e.attempt == self._last_attempt]
        found = [e.payload["weights_hash"] for e in ends if "weights_hash" in e.payload]
        return str(found[0]) if found else None

    @property
    def checkpoint(self) -> str | None:
        return newest_path(self.folder.checkpoints)

    @cached_property
    def best(self) -> Best | None:
        """The checkpoint with the lowest validation loss, of a run that keeps it."""
        if self.known_run is None or not self.known_run.evaluate.keep_best:
            return None
        for one in best_first(published_checkpoints(self.folder.checkpoints)):
            if (loss := one.validation_loss) is not None:
                return Best(one.step, finite(loss), str(one.path))
        return None

    @property
    def epoch_tokens(self) -> int | None:
        """Tokens of one pass over the data; None of a mixture, whose parts have passes of their
        own."""
        samples, sequence = self.plan.get("samples"), self.plan.get("sequence")
        if not samples or not sequence or isinstance(self.plan.get("dataset"), list):
            return None
        return int(samples) * int(sequence)

    @property
    def passes(self) -> float | None:
        """How often the data was gone through so far."""
        if not self.epoch_tokens or not len(self.curve):
            return None
        return float(self.curve["tokens"][-1]) / self.epoch_tokens
