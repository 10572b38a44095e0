"""What a run folder says, gathered for whoever shows it. Reads files only; no torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.catalog import accelerators
from penstock.guard.published import newest
from penstock.ledger.merge import Account, merge
from penstock.ledger.readers import Event, read_curve, read_events, read_steps
from penstock.ledger.records import SUPERVISOR, journal_files
from penstock.meter.clock import now
from penstock.run.file import Run
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.words import finite


@dataclass
class View:
    """One reading of a run; make a new one to see what has changed."""

    folder: RunFolder

    @cached_property
    def run(self) -> Run:
        return load(self.folder.run_file)

    @cached_property
    def plan(self) -> dict[str, Any]:
        return self.folder.read_plan()

    @cached_property
    def running(self) -> bool:
        return self.folder.running()

    @cached_property
    def supervisor(self) -> list[Event]:
        return read_events(self.folder.journal / SUPERVISOR)

    @cached_property
    def events(self) -> list[Event]:
        """What the ranks wrote, by time."""
        files = journal_files(self.folder.journal, "events")
        return sorted((e for f in files for e in read_events(f.path)), key=lambda e: e.t)

    @cached_property
    def account(self) -> Account:
        return merge(self.folder.journal, now() if self.running else None)

    @cached_property
    def curve(self) -> np.ndarray:
        """The training curve; after a restart, what was lost is cut off and counts no more."""
        parts = [read_curve(f.path) for f in journal_files(self.folder.journal, "curve")]
        if not parts:
            return np.empty(0, [("step", "<u8"), ("loss", "<f8"), ("tokens", "<f8")])
        points = np.concatenate(parts)
        lowest_after = np.minimum.accumulate(points["step"][::-1])[::-1][1:]
        return points[np.append(points["step"][:-1] < lowest_after, True)[: len(points)]]

    @cached_property
    def validation(self) -> list[tuple[int, float]]:
        """(step, loss on the held-out samples), by step."""
        found = {
            int(str(e.payload["step"])): float(str(e.payload["val_loss"]))
            for e in self.events
            if "val_loss" in e.payload
        }
        return sorted(found.items())

    @property
    def status(self) -> str:
        """running, done, stopped, failed, or killed when nobody wrote an end."""
        if self.running:
            return "running"
        invocations = self.account.invocations
        return (invocations[-1].result or "killed") if invocations else "new"

    @property
    def step(self) -> int:
        return int(self.curve["step"][-1]) if len(self.curve) else 0

    @property
    def steps(self) -> int:
        return int(self.plan.get("steps") or 0)

    @property
    def loss(self) -> float | None:
        """Mean of the last steps: one batch alone says little."""
        return finite(self.curve["loss"][-10:].mean()) if len(self.curve) else None

    @cached_property
    def tokens_per_s(self) -> float | None:
        """While stepping, over all ranks: tokens of a step over the median time of one."""
        files = journal_files(self.folder.journal, "steps")
        totals = [read_steps(f.path)["total"] for f in files if f.ranks.start == 0]
        seconds = np.concatenate(totals) if totals else np.empty(0)
        if not len(seconds) or "batch_tokens" not in self.plan:
            return None
        return float(self.plan["batch_tokens"] / np.median(seconds))

    @property
    def mfu(self) -> float | None:
        """Share of the accelerator's published peak; None for a device not in the catalog."""
        device = accelerators.for_device(str(self.plan.get("device_name", "")))
        work, speed = self.plan.get("flops_per_token"), self.tokens_per_s
        precision = self.run.train.precision
        peak = device.peak_flops(precision) if device and precision in ("fp32", "bf16") else None
        if not (peak and work and speed):
            return None
        return float(work * speed / (peak * self.plan["ranks"]))

    @property
    def left_s(self) -> float | None:
        """Time to the end at the pace of the last steps, from the curve's own clock."""
        if len(self.curve) < 3:
            return None
        t = self.curve["t"][-50:]
        return float((t[-1] - t[0]) / (len(t) - 1) * (self.steps - self.step))

    def last_of(self, key: str) -> object | None:
        """The newest value of a payload key that any rank wrote."""
        values = [e.payload[key] for e in self.events if key in e.payload]
        return values[-1] if values else None

    @property
    def resumed_from(self) -> int | None:
        """The step that the last invocation went on from."""
        invocations = self.account.invocations
        began = invocations[-1].start if invocations else 0.0
        steps = [e.payload["step"] for e in self.events if e.kind == "resumed" and e.t >= began]
        return int(str(steps[0])) if steps else None

    @property
    def weights_hash(self) -> str | None:
        """Of the weights the run ended with; None while it has not."""
        found = self.last_of("weights_hash") if self.status in ("done", "stopped") else None
        return str(found) if found else None

    @property
    def checkpoint(self) -> str | None:
        return newest(self.folder.checkpoints)
