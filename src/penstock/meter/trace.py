"""The trace of one step: how the time of its `compute` parts divides.

An accelerator's own kernels say it where there is one; on a CPU the operations of the thread that
trains. Communication counts where nothing was computed meanwhile: what is hidden costs nothing.

Reads rows, not torch: `train/tracer.py` makes them, and tests can too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from penstock.meter.intervals import (
    Spans,
    covered_until,
    each,
    measure,
    own,
    union,
    within,
    without,
)

# "op": a host operation; "note": an annotation of the host; "kernel", "copy": on the accelerator.
Kind = Literal["op", "note", "kernel", "copy"]
NOTE = "penstock:"  # before the name of a part of the step
# Receives are posted early. In short gaps between operations the host prepares the next one, and
# would do so without a peer to wait for.
GLUE_NS = 200_000
CALLS = ("c10d::", "_c10d_functional", "c10d_functional::")  # host operations that communicate
P2P = ("send", "recv")


class TraceOp(NamedTuple):
    """One row of a trace; times on any one clock."""

    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    thread: int = 0


@dataclass(frozen=True)
class ComputeSplit:
    """Seconds of the `compute` parts of a step; they add up to `window_s`."""

    window_s: float
    compute_s: float = 0.0
    copy_s: float = 0.0  # between host and accelerator, with nothing else going on
    collectives_s: tuple[float, ...] = ()  # exposed, of each collective in order
    calls_s: float = 0.0  # spent on the host to get communication going
    bubble_s: float = 0.0  # a stage of a pipeline that waits for its neighbour
    idle_s: float = 0.0  # none of these: the host prepares the next operation

    @property
    def communicate_s(self) -> float:
        return sum(self.collectives_s) + self.calls_s


def split_compute(ops: Sequence[TraceOp], pipelined: bool) -> ComputeSplit:
    """Divide the compute time of a step.

    With `pipelined`, sends and receives are between stages, and waiting for one is a bubble.
    """
    windows = union(_spans([op for op in ops if op.name == f"{NOTE}compute" and op.kind == "note"]))
    on_device = any(op.kind == "kernel" for op in ops)
    if on_device:
        busy = union(_spans([op for op in ops if op.kind == "kernel" and not _is_nccl(op)]))
        calls = busy[:0]
    else:
        busy, calls = _host(ops)
    talks = sorted((op for op in ops if _talks(op)), key=lambda op: op.start_ns)
    is_p2p = [pipelined and any(way in op.name.lower() for way in P2P) for op in talks]
    waits = union(_spans([op for op, yes in zip(talks, is_p2p, strict=True) if yes]))
    collectives = _spans([op for op, yes in zip(talks, is_p2p, strict=True) if not yes])
    collectives = collectives[_meet(collectives, windows)]

    free = without(windows, busy)
    exposed = each(collectives, free)
    rest = without(free, union(collectives))
    bubble = within(without(rest, union(busy, GLUE_NS)), waits)
    rest = without(rest, bubble)
    called = within(rest, calls)
    rest = without(rest, called)
    copies = within(rest, union(_spans([op for op in ops if op.kind == "copy"])))
    return ComputeSplit(
        window_s=_s(windows),
        compute_s=_s(within(windows, busy)),
        copy_s=_s(copies),
        collectives_s=tuple((exposed / 1e9).tolist()),
        calls_s=_s(called),
        bubble_s=_s(bubble),
        idle_s=_s(without(rest, copies)),
    )


def sum_neighbours(collectives_s: Sequence[float], most: int) -> list[float]:
    """Return at most `most` sums over neighbours, the same neighbours for equal counts."""
    count = len(collectives_s)
    if count <= most:
        return list(collectives_s)
    place = np.arange(count) * most // count
    return np.bincount(place, weights=np.asarray(collectives_s), minlength=most).tolist()


def _host(ops: Sequence[TraceOp]) -> tuple[Spans, Spans]:
    """Return when the training thread computed, and when it was in communication calls.

    The innermost operation decides: one that only wraps others may hide a wait.
    """
    threads = {op.thread for op in ops if op.name.startswith(NOTE) and op.kind == "note"}
    mine = [op for op in ops if op.kind == "op" and op.thread in threads]
    mine.sort(key=lambda op: (op.start_ns, -op.end_ns))
    rows = own(_spans(mine))
    is_call = np.array([op.name.startswith(CALLS) for op in mine], bool)
    computes = np.array([_computes(op.name) for op in mine], bool)
    owner = rows[:, 2]
    return union(rows[computes[owner], :2]), union(rows[is_call[owner], :2])


def _computes(name: str) -> bool:
    """Return whether a row is an operation such as `aten::mm`, not a range around others."""
    return "::" in name and not name.startswith((*CALLS, "autograd::"))


def _talks(op: TraceOp) -> bool:
    return _is_nccl(op) or (op.kind == "note" and op.name.startswith("gloo:"))


def _is_nccl(op: TraceOp) -> bool:
    return op.kind == "kernel" and op.name.startswith("nccl")


def _meet(spans: Spans, windows: Spans) -> np.ndarray:
    """Return which of the spans overlap the windows."""
    return covered_until(windows, spans[:, 1]) > covered_until(windows, spans[:, 0])


def _spans(ops: Sequence[TraceOp]) -> Spans:
    return np.array([(op.start_ns, op.end_ns) for op in ops], np.int64).reshape(-1, 2)


def _s(spans: Spans) -> float:
    return measure(spans) / 1e9
