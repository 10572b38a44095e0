"""One life as the folder of a run, which `report` and `watch` open like any other.

Ranks that did the same share one file, as the format allows. Steps are the life's own; the saves
and evaluations of a segment stand between its steps at equal distances, as a few spans.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.ledger.journal.events import (
    AttemptFailed,
    AttemptLaunched,
    CheckpointLoaded,
    CheckpointSpan,
    EvaluateSpan,
    InvocationEnded,
    InvocationStarted,
    JournalEvent,
    LostStepSpan,
    PauseEnded,
    RankEnded,
    RankReady,
    RegroupSpan,
    ReplicaGone,
    RollbackSpan,
    RunPaused,
    RunResized,
)
from penstock.ledger.journal.records import (
    CURVE,
    ROLLUP_STEPS,
    STEP,
    SUPERVISOR,
    file_name,
    header,
)
from penstock.ledger.journal.rollups import rollup
from penstock.plan.cost.rates import hours_written, of_machine
from penstock.run.folder import RunFolder
from penstock.run.save import save
from penstock.simulate.conditions import Conditions
from penstock.simulate.record import AttemptRecord, Recorder, Segment
from penstock.simulate.result import Simulation
from penstock.simulate.simulate import record_life

MOST_STEPS = 4_000_000  # 128 MB
EVERY = 20  # steps between points of the curve
SPANS = 200  # of a kind in one segment, at most
T0 = 1_700_000_000.0  # lives begin at a fixed moment: the same seed gives the same journal


def write_run(done: Simulation, name: str) -> RunFolder:
    """Write the life in the middle under this name, in the folder that holds the run's."""
    folder = RunFolder(done.run.folder.parent / name)
    if Path(name).name != name or name in ("", ".", ".."):
        raise PenstockError(f"--out {name}: a name of a run, not a path; write a plain name")
    if folder.path.exists():
        raise PenstockError(f"--out {name}: {folder.path} exists; choose another name")
    record = record_life(done.own, done.model, done.seed, len(done.lives), done.middle)
    steps = sum(s.reached - s.step for a in record.attempts for s in a.segments if s.reached)
    if steps > MOST_STEPS:
        raise PenstockError(
            f"--out {name}: this life has {steps:,} steps, and a journal of at most "
            f"{MOST_STEPS:,} is written; simulate a part of it with --days"
        )
    folder.make()
    save(done.run.model_copy(update={"name": name}), folder.run_file)
    folder.write_plan(_launch_record(done))
    write_journal(record, done, folder.journal)
    return folder


def _launch_record(done: Simulation) -> dict[str, Any]:
    """Return what a launch would have written down."""
    plan, own = done.plan, done.own
    job = plan.job
    return {
        "device": "cpu" if job.machine.kind == "cpu" else "cuda",
        "device_name": job.machine.accelerator,
        "machine": f"{job.machine.name}, simulated",
        "layout": job.layout.to_json(),
        "ranks": own.ranks,
        "params": job.shape.params(),
        "flops_per_token": plan.step.model_flops / plan.step.tokens,
        "steps": plan.life.steps,
        "batch_tokens": plan.step.tokens,
        "sequence": job.sequence,
        "rates": of_machine(done.run, job.machine).to_json() | _hours(own),
        "predicted": plan.to_json(),
    }


def _hours(own: Conditions) -> dict[str, Any]:
    """Return the hours of the life, whose clock is not that of the journal."""
    if own.hours is None:
        return {}
    return hours_written(own.hours.curve, own.hours.begins_s - T0)


def write_journal(record: Recorder, done: Simulation, folder: Path) -> None:
    """Write the supervisor's lines, and the events and steps of every attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(_supervisor(record, done), key=lambda line: line[0])
    (folder / SUPERVISOR).write_text("".join(_line(t, None, event) for t, event in lines))
    for number, attempt in enumerate(record.attempts, 1):
        _write_attempt(number, attempt, record, done, folder)


def _supervisor(record: Recorder, done: Simulation) -> Iterator[tuple[float, JournalEvent]]:
    own = done.own
    yield (
        0.0,
        InvocationStarted(ranks=own.ranks, machine=f"{done.plan.job.machine.name}, simulated"),
    )
    before = False
    for number, attempt in enumerate(record.attempts, 1):
        yield attempt.launched, AttemptLaunched(attempt=number, ranks=attempt.ranks)
        if attempt.by_hour or before:
            why = f"on {attempt.ranks:,} of {own.ranks:,} accelerators, simulated"
            resized = RunResized(attempt=number, ranks=attempt.ranks, of=own.ranks, why=why)
            yield attempt.launched, resized
        before = attempt.by_hour
        if attempt.fault:
            since, noticed, cause = attempt.fault
            yield (
                min(noticed, record.end_t),
                AttemptFailed(
                    since=T0 + since,
                    attempt=number,
                    rank=None,
                    reason=f"{cause.name}: {cause.reason}",
                    action="restart",
                ),
            )
    for start, end in record.pauses:
        yield start, RunPaused(until=T0 + end, why="paused, simulated")
        yield end, PauseEnded()
    size = own.ranks // own.replicas
    for lost in record.lost_replicas:
        for replica in lost.replicas:
            yield (
                lost.t,
                ReplicaGone(
                    attempt=lost.attempt,
                    replica=replica,
                    ranks=[replica * size, (replica + 1) * size - 1],
                    since=T0 + lost.t,
                    rank=None,
                    reason=lost.reason,
                ),
            )
    yield record.end_t, InvocationEnded(result="done" if record.finished else "stopped", error=None)


def _write_attempt(
    number: int, attempt: AttemptRecord, record: Recorder, done: Simulation, folder: Path
) -> None:
    """Write one attempt: the events of all its ranks, and their steps."""
    ranks = range(max(1, min(attempt.ranks, done.own.ranks)))
    size = done.own.ranks // done.own.replicas
    lines: list[tuple[float, str]] = [
        (attempt.ready, _line(attempt.ready, None, RankReady(step=attempt.segments[0].step)))
    ]
    if number > 1:
        loaded = CheckpointLoaded(
            step=attempt.segments[0].step, tier="simulated", path="", seconds=done.own.load_s
        )
        lines.append((attempt.ready - 1e-3, _line(attempt.ready - 1e-3, None, loaded)))
    stalls = [stall for stall in record.stalls if stall[2] == number]
    for start, end, _, kind in stalls:
        event = RollbackSpan(before=None, to=None) if kind == "rollback" else RegroupSpan(why=kind)
        lines.append((start, _line(start, end, event)))
    for t, replica in _joined(number, attempt, record):
        part = {"ranks": [replica * size, (replica + 1) * size - 1]}
        lines.append((t, _line(t, None, RankReady(step=0), part)))
    tables = []
    for segment in attempt.segments:
        table, spans = _segment(segment, done, faulted=attempt.fault is not None)
        tables.append(table)
        lines += [(start, _line(start, end, event)) for start, end, event in spans]
    if attempt.fault is None and attempt.segments[-1].stopped is not None:
        t = attempt.segments[-1].stopped
        lines.append((t, _line(t, None, RankEnded(result="stopped"))))
    lines.sort(key=lambda line: line[0])
    text = "".join(text for _, text in lines)
    table = np.concatenate(tables)
    # Rank 0 stands for the one that the others wait for: it spends in collectives what they take.
    parts = [(ranks, table)]
    if len(ranks) > 1:
        parts = [(ranks[:1], _slowest(table, done)), (ranks[1:], table)]
    for some, steps in parts:
        (folder / file_name(number, some, "events")).write_text(text)
        _write_steps(folder, number, some, steps)
    _write_curve(folder, number, ranks[:1], table, done)


def _joined(number: int, attempt: AttemptRecord, record: Recorder) -> Iterator[tuple[float, int]]:
    """Yield when each lost replica was back; at the end of the attempt if it never was, since its
    ranks share the files of those that went on.
    """
    back = [(t, replica) for t, of, replica in record.joined_replicas if of == number]
    yield from back
    end = attempt.segments[-1].stopped
    last_lost = {
        r: one.t for one in record.lost_replicas if one.attempt == number for r in one.replicas
    }
    for replica, lost_t in last_lost.items():
        if end is not None and not any(r == replica and t >= lost_t for t, r in back):
            yield end, replica


def _pace_s(segment: Segment, done: Simulation) -> np.ndarray | float:
    """Return the seconds of a step without stragglers: at the pace of the ranks that were there."""
    rates = [(s.last - s.first) / (s.end - s.start) for s in segment.spans if s.end > s.start]
    share = 1 - done.own.evaluate_share - done.own.fast_share
    share *= done.own.interval_s / (done.own.interval_s + done.own.save_cost_s)
    return share / max(rates, default=1.0)


def _slowest(table: np.ndarray, done: Simulation) -> np.ndarray:
    """Return the steps of the rank that nobody has to wait for longer: it computes meanwhile."""
    own = table.copy()
    communicate_s = table["total"] * done.own.shares[1]
    own["compute"] += own["exchange"] - np.minimum(own["exchange"], communicate_s)
    own["exchange"] = np.minimum(table["exchange"], communicate_s)
    return own


def _write_curve(
    folder: Path, number: int, ranks: range, table: np.ndarray, done: Simulation
) -> None:
    """Write how far the run came. A simulated run has no loss."""
    if not len(table):
        return
    chosen = table[np.unique(np.append(np.arange(0, len(table), EVERY), len(table) - 1))]
    curve = np.zeros(len(chosen), CURVE)
    curve["t"] = chosen["start"] + chosen["total"]
    curve["step"] = chosen["step"]
    curve["tokens"] = chosen["step"].astype(float) * done.plan.step.tokens
    for name in ("loss", "grad_norm", "learning_rate"):
        curve[name] = np.nan
    path = folder / file_name(number, ranks, "curve")
    path.write_bytes(header("curve", number, ranks) + curve.tobytes())


def _segment(
    segment: Segment, done: Simulation, faulted: bool
) -> tuple[np.ndarray, list[tuple[float, float, JournalEvent]]]:
    """Return the steps of a segment, and the spans between them."""
    first, reached = segment.step, segment.reached or segment.step
    count = max(reached - first, 0)
    active = [s for s in segment.spans if s.end > s.start]
    saving = sum(s.saving_s for s in active)
    evaluating = sum(s.evaluating_s for s in active)
    spans: list[tuple[float, float, JournalEvent]] = []
    table = np.zeros(count, STEP)
    if not count:
        return table, spans
    total_s = sum(s.end - s.start for s in active)
    share = min(1.0, (saving + evaluating) / total_s) if total_s else 0.0
    # The time of each step without stalls, by the pace of the span that it ends in.
    ends = np.interp(
        np.arange(first + 1, reached + 1),
        [active[0].first, *(s.last for s in active)],
        [0.0, *np.cumsum([(s.end - s.start) * (1 - share) for s in active])],
    )
    lengths = np.diff(np.concatenate([[0.0], ends]))
    gaps = np.zeros(count)
    places = np.unique(np.linspace(0, count - 1, min(SPANS, count)).astype(int))
    gaps[places] = (saving + evaluating) / len(places)
    starts = segment.start + np.cumsum(gaps) + np.concatenate([[0.0], ends[:-1]])
    for place in places.tolist():
        begin = float(starts[place] - gaps[place])
        middle = begin + saving / len(places)
        step = first + place + 1
        if saving > 0:
            spans.append((begin, middle, CheckpointSpan(step=step)))
        if evaluating > 0:
            spans.append((middle, float(starts[place]), EvaluateSpan(step=step)))
    names = dict(
        zip(("compute", "communicate", "bubble", "peer", "fetch"), done.own.shares, strict=True)
    )
    table["step"] = np.arange(first + 1, reached + 1)
    table["start"], table["total"] = T0 + starts, lengths
    # Beyond the planned pace all wait for a straggler.
    own_s = np.minimum(lengths, _pace_s(segment, done))
    for name in ("fetch", "compute", "bubble"):
        table[name] = own_s * names[name]
    table["exchange"] = lengths - own_s * (1 - names["communicate"] - names["peer"])
    stop = segment.stopped
    last = float(starts[-1] + lengths[-1])
    if stop is not None and not faulted and stop - last > 1e-6:
        spans.append((last, stop, LostStepSpan()))
    return table, spans


def _write_steps(folder: Path, number: int, ranks: range, table: np.ndarray) -> None:
    if not len(table):
        return
    path = folder / file_name(number, ranks, "steps")
    path.write_bytes(header("steps", number, ranks) + table.tobytes())
    blocks = len(table) // ROLLUP_STEPS
    if blocks:
        made = [
            rollup(table[i * ROLLUP_STEPS : (i + 1) * ROLLUP_STEPS]).tobytes()
            for i in range(blocks)
        ]
        rolled = folder / file_name(number, ranks, "rollups")
        rolled.write_bytes(header("rollups", number, ranks) + b"".join(made))


def _line(
    t: float, end: float | None, event: JournalEvent, more: Mapping[str, object] | None = None
) -> str:
    times = {"t": T0 + t} if end is None else {"t": T0 + t, "end": T0 + end}
    payload = {**times, "kind": event.kind, **event.to_payload(), **(more or {})}
    return json.dumps(payload, separators=(",", ":")) + "\n"
