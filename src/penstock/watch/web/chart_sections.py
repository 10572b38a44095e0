"""The sections of a run's page that are charts: loss, speed, and causes over time."""

from typing import Any

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import BatchSkipped, RollbackSpan, SpikeFound
from penstock.ledger.journal.read import read_steps
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.values import whole
from penstock.watch.facts.downsample import (
    block_extremes,
    block_means,
    block_starts,
    json_numbers,
    not_superseded,
)
from penstock.watch.facts.rewards import held_out_rewards, training_rewards
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.style.text import finite

Section = dict[str, Any]
BINS = 240  # of the stacked areas
MOST_MARKS = 200
LAST_EVENTS = 64
PATIENCE_S = 60.0  # after which a missing record shows as unexplained time


def curve(facts: RunFacts) -> Section:
    """Return loss and gradient norm with their extremes, learning rate, validation and marks."""
    view, points = facts.view, facts.view.curve
    starts = block_starts(len(points))
    if len(points) == 0:
        return {"step": [], "loss": [], "validation": [], "marks": _marks(facts)}
    low, high = block_extremes(points["loss"], starts)
    norms = points["grad_norm"].astype(np.float64)
    last = np.append(starts[1:], len(points)) - 1  # a block is drawn where it ends
    return {
        "step": points["step"][last].tolist(),
        "loss": json_numbers(block_means(points["loss"], starts)),
        "low": json_numbers(low),
        "high": json_numbers(high),
        "learning_rate": json_numbers(points["learning_rate"][last], 4),
        "grad_norm": json_numbers(block_means(norms, starts), 4),
        "grad_norm_high": json_numbers(block_extremes(norms, starts)[1], 4),
        "clip": view.run_or_none.train.clip if view.run_or_none else None,
        "validation": [[step, finite(loss)] for step, loss in view.validation],
        "rewards": _rewards(view),
        "marks": _marks(facts),
    }


def _rewards(view: RunView) -> Section | None:
    """Return the rewards of an objective on pairs, by step; None for others."""
    found = training_rewards(view)
    if not found:
        return None
    starts = block_starts(len(found))
    last = np.append(starts[1:], len(found)) - 1
    columns = {
        name: json_numbers(block_means(np.array([getattr(one, name) for one in found]), starts))
        for name in ("chosen", "rejected", "margin", "accuracy")
    }
    held = [[one.step, finite(one.margin), finite(one.accuracy)] for one in held_out_rewards(view)]
    return {"step": [found[at].step for at in last.tolist()], **columns, "held_out": held}


def _marks(facts: RunFacts) -> list[Section]:
    """Return the flags on the curve, by step: incidents, rollbacks and restarts."""
    marks: list[Section] = []
    for incident in [line.event for line in facts.view.incidents]:
        kind, why = "differ", ""
        if isinstance(incident, BatchSkipped | SpikeFound):
            kind, why = "skip" if isinstance(incident, BatchSkipped) else "spike", incident.why
        marks.append({"step": incident.step, "kind": kind, "words": why or kind})
    for rollback in [line.event for line in facts.view.rank_events_of(RollbackSpan)]:
        if (step := whole(rollback.before)) is not None:
            words = f"went back to step {rollback.to}"
            marks.append({"step": step, "kind": "rollback", "words": words})
    for disruption in facts.disruptions:
        if disruption.step is not None:
            words = f"rank {disruption.rank}: {disruption.reason}"
            marks.append({"step": disruption.step, "kind": "fault", "words": words})
    unique = {(mark["step"], mark["kind"], mark["words"]): mark for mark in marks}
    return sorted(unique.values(), key=lambda mark: int(mark["step"]))[-MOST_MARKS:]


def speed(facts: RunFacts) -> Section:
    """Return tokens per second while stepping, over all ranks, and the plan with its band."""
    view = facts.view
    batch = view.launch.batch_tokens
    files = [f for f in journal_files(view.folder.journal, "steps") if 0 in f.ranks]
    parts = [read_steps(f.path) for f in files]
    section: Section = {"step": [], "tokens_per_s": [], "plan": _planned_speed(facts)}
    mfu_per_token = view.mfu / view.tokens_per_s if view.mfu and view.tokens_per_s else None
    section["mfu_per_token"] = mfu_per_token
    if not batch or not any(len(part) for part in parts):
        return section
    steps = np.concatenate(parts)
    steps = steps[not_superseded(steps["step"])]
    starts = block_starts(len(steps))
    last = np.append(starts[1:], len(steps)) - 1
    mean_s = block_means(steps["total"].astype(np.float64), starts)
    with np.errstate(divide="ignore"):
        speeds = json_numbers(batch / mean_s, 5)
    return section | {"step": steps["step"][last].tolist(), "tokens_per_s": speeds}


def _planned_speed(facts: RunFacts) -> Section | None:
    if not facts.plan or not facts.plan.planned_tokens_per_s:
        return None
    low, high = facts.plan.tokens_per_s_band or (None, None)
    return {"tokens_per_s": facts.plan.planned_tokens_per_s, "low": low, "high": high}


def time_over_causes(facts: RunFacts) -> Section:
    """Return rank-seconds by cause over the time of the run."""
    over_time = facts.view.over_time(BINS)
    shown = max(1, BINS - _unwritten_bins(facts.view, over_time.edges))
    return {
        "causes": [str(cause) for cause in Cause],
        "edges": [round(edge, 2) for edge in over_time.edges[: shown + 1].tolist()],
        "seconds": [json_numbers(column, 4) for column in over_time.seconds[:shown].T],
    }


def _unwritten_bins(view: RunView, edges: np.ndarray) -> int:
    """Count the bins at the end that no record can cover yet: a span is written when it is over.

    After `PATIENCE_S` they are shown as unexplained, because something is wrong.
    """
    ends = [e.t if e.end is None else e.end for e in view.rank_events[-LAST_EVENTS:]]
    last = max([*ends, *view.curve["t"][-1:].tolist()], default=edges[-1])
    if not view.running or edges[-1] - last > PATIENCE_S:
        return 0
    return int((edges[:-1] >= last).sum())
