"""Traces of single steps: what is inside `compute`, for the ledger, and a file for Perfetto.

All ranks trace the same step, which the vote of the step before decided. The cost of tracing is not
part of any step: it lies between steps, and the journal says how much it was.
"""

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile, record_function

from penstock.ledger.journal.events import StepTraced
from penstock.ledger.journal.writer import Journal
from penstock.ledger.split import CELLS
from penstock.meter.clock import StepClock, now
from penstock.meter.trace import NOTE, ComputeSplit, Kind, TraceOp, split_compute, sum_neighbours
from penstock.run.schema.quantity import Every
from penstock.train.world.world import World

FIRST = 20  # steps after a start: caches are warm, and a short run has a trace too
TRACING = 32  # ranks at most: of many equal ones, a few say enough
PICTURES = 8  # ranks at most that leave files
KEPT = 10  # newest files of a rank
ROWS = 20_000  # of a file at most, the longest: about half a megabyte


@dataclass
class Tracer:
    """The tracer of one rank. `folder` is where files go."""

    folder: Path
    journal: Journal
    world: World
    every: Every | str
    requested: bool = False  # by the vote: the next step is traced
    _started: int | None = None  # the first step of this attempt
    _traced_s: float = field(default_factory=now)
    _writing: threading.Thread | None = None
    _warming: threading.Thread | None = None

    def due(self, step: int) -> bool:
        """Return whether `step` is to be traced; the leading rank asks for every step."""
        if not isinstance(self.every, Every):
            return False
        self._started = step - 1 if self._started is None else self._started
        first = step == self._started + FIRST - 1
        if self.every.steps is not None:
            again = step % self.every.steps == 0
        else:
            again = now() - self._traced_s >= (self.every.seconds or 0.0)
        if first or again:
            self._traced_s = now()
        return first or again

    def begin_warm_up(self, steps: int) -> None:
        """Begin a first trace on an accelerator, which takes seconds, before the first step.

        It runs on a thread, beside the first kernels. `steps` are to come: a run too short for a
        trace does not need this.
        """
        if self.world.cuda and isinstance(self.every, Every) and steps > FIRST and self._traces:
            self._warming = threading.Thread(target=self._warm_up, name="trace", daemon=True)
            self._warming.start()

    def _warm_up(self) -> None:
        torch.cuda.set_device(self.world.device)  # a thread begins with the first
        with _profile(cuda=True):
            torch.zeros(1, device=self.world.device)

    def wait_warm(self) -> None:
        """Wait until the first trace is made: the first step must not be slowed down by it."""
        if self._warming:
            self._warming.join()
        self._warming = None

    @contextmanager
    def trace_if_requested(self, step: int, clock: StepClock) -> Iterator[None]:
        """Trace all that runs inside this context, if the last vote asked for it."""
        asked, self.requested = self.requested, False
        if not (asked and self._traces):
            yield
            return
        began = time.perf_counter()
        taken = _profile(self.world.cuda)
        with taken:
            clock.note = self._note
            cost_s = time.perf_counter() - began
            try:
                yield
            finally:
                clock.note = nullcontext
                began = time.perf_counter()
        self._record(step, trace_rows(taken), cost_s, began)

    @contextmanager
    def _note(self, name: str) -> Iterator[None]:
        """Annotate a part of the step. The device ends a part when the host does, so that its work
        belongs to the part.
        """
        with record_function(f"{NOTE}{name}"):
            yield
            if self.world.cuda:
                torch.cuda.synchronize()

    def _record(self, step: int, ops: list[TraceOp], cost_s: float, began: float) -> None:
        """Write the split of a traced step to the journal; `began` is when the step ended, so that
        this work counts as cost.
        """
        split = split_compute(ops, self.world.size("pipeline") > 1)
        rank = self.journal.ranks[0]
        name = f"step{step:08d}-a{self.journal.attempt:04d}-r{rank:05d}.json.gz"
        said: dict[str, Any] = {"step": step, **_split_record(split)}
        said["peers"], said["stage"] = self._peers()
        if self._leaves_files:
            said["file"] = f"{self.folder.name}/{name}"
            self.close()
            args = (self.folder, name, ops, rank)
            self._writing = threading.Thread(target=write_trace_file, args=args, daemon=True)
            self._writing.start()
        cost_s += time.perf_counter() - began
        self.journal.write(StepTraced(cost_s=round(cost_s, 6), **said), synced=False)

    def close(self) -> None:
        """Wait until the last file is written."""
        if self._writing:
            self._writing.join()

    @property
    def _block(self) -> int:
        """Return how many ranks have collectives with each other inside `compute`; their numbers
        are consecutive.
        """
        return self.world.size("shard") * self.world.size("context") * self.world.size("tensor")

    def _peers(self) -> tuple[list[int], list[int]]:
        """Return first and last rank of those with common collectives, and of those with equal
        work.
        """
        first = self.journal.ranks[0] - self.world.rank  # in live mode a replica is a world
        stage = self.world.ranks // self.world.size("pipeline")
        low, lowest = (self.world.rank // size * size + first for size in (self._block, stage))
        return [low, low + self._block - 1], [lowest, lowest + stage - 1]

    @property
    def _traces(self) -> bool:
        """Return whether this rank traces: in a large run the first replica does, a few ranks of
        each stage.
        """
        if self.world.ranks <= TRACING:
            return True
        each = max(1, TRACING // self.world.size("pipeline"))
        return self.world.index("replicate") == 0 and self.world.rank % self._block < each

    @property
    def _leaves_files(self) -> bool:
        return self.journal.ranks[0] < PICTURES


def _profile(cuda: bool) -> profile:
    # Not `torch.profiler.profile`: it imports torch's compiler, which takes seconds.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write on stderr when it starts
    return profile(use_kineto=True, use_device="cuda" if cuda else None)


def trace_rows(taken: profile) -> list[TraceOp]:
    """Return the events of a trace, without those that repeat others: launches, and annotations on
    the device.
    """
    assert taken.kineto_results is not None
    found = []
    for event in taken.kineto_results.events():
        if kind := _kind(event):
            start = event.start_ns()
            end = start + event.duration_ns()
            found.append(TraceOp(event.name(), kind, start, end, event.start_thread_id()))
    return found


def _kind(event: Any) -> Kind | None:
    note = event.is_user_annotation()
    if event.device_type() == DeviceType.CPU:
        return "note" if note else "op"
    if note:
        return None
    return "copy" if event.name().startswith("Memcpy") else "kernel"


def _split_record(split: ComputeSplit) -> dict[str, Any]:
    """Return the seconds by what they were spent on, to the microsecond."""
    parts = {
        "compute": split.compute_s,
        "copy": split.copy_s,
        "calls": split.calls_s,
        "bubble": split.bubble_s,
        "idle": split.idle_s,
    }
    told: dict[str, Any] = {name: round(seconds, 6) for name, seconds in parts.items()}
    told["collectives"] = [round(s, 6) for s in sum_neighbours(split.collectives_s, CELLS)]
    return {"split": told, "count": len(split.collectives_s)}


def write_trace_file(folder: Path, name: str, ops: list[TraceOp], rank: int) -> None:
    """Write a file that Perfetto and chrome://tracing open, and drop the oldest of this rank."""
    longest = sorted(ops, key=lambda op: op.start_ns - op.end_ns)[:ROWS]
    origin = min((op.start_ns for op in longest), default=0)
    names = {op.name: json.dumps(op.name) for op in longest}
    lines = [
        f'{{"ph":"X","pid":{rank},"tid":{json.dumps(_lane(op))},"name":{names[op.name]},'
        f'"ts":{(op.start_ns - origin) / 1e3},"dur":{(op.end_ns - op.start_ns) / 1e3}}}'
        for op in longest
    ]
    aside = folder / f".{name}"
    try:
        folder.mkdir(exist_ok=True)
        aside.write_bytes(gzip.compress(f"[{','.join(lines)}]".encode(), compresslevel=4))
        aside.rename(folder / name)
        for old in sorted(folder.glob(f"step*-r{rank:05d}.json.gz"))[:-KEPT]:
            old.unlink()
    except OSError:  # a picture is no reason to stop
        aside.unlink(missing_ok=True)


def _lane(op: TraceOp) -> str:
    """Return the line of the picture that an event is drawn on."""
    if op.kind in ("kernel", "copy"):
        return f"device: {'communication' if op.name.startswith('nccl') else op.kind}"
    return f"host thread {op.thread}" if op.kind == "op" else f"host thread {op.thread}: parts"
