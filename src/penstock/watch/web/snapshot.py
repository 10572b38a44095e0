"""What the page shows of a run, as plain values: a dictionary of sections.

A section is computed from one reading of the run folder. One that cannot be computed, because a
file is damaged or not yet there, says so and leaves the others alone.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import secret
from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.journal.read import read_steps
from penstock.ledger.journal.records import journal_files
from penstock.plan.job.layout import Layout
from penstock.run import toml
from penstock.run.save import to_table
from penstock.watch.facts.advice import advice
from penstock.watch.facts.event_text import told
from penstock.watch.facts.health import health
from penstock.watch.facts.plan_vs_actual import held
from penstock.watch.facts.supplies import Section, checkpoints, data, energy
from penstock.watch.facts.thinned import extremes, last_of_each, means, short, starts
from penstock.watch.facts.timeline import phases, troubles
from penstock.watch.facts.view import View
from penstock.watch.style.text import dataset_text, finite, model_text

FEW_RANKS = 8  # that have room for where the time of each went
LAST_EVENTS = 64
PATIENCE_S = 60.0
BINS = 240  # of the stacked areas
# What a half-written or damaged run folder makes of a reader.
UNREADABLE = (
    PenstockError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip


def snapshot(view: View) -> dict[str, Section]:
    """Everything on a run's page, by section."""
    return {name: _section(make, view) for name, make in SECTIONS.items()}


def _section(make: Callable[[View], Section], view: View) -> Section:
    try:
        made = make(view)
    except UNREADABLE as error:
        made = {"problem": f"{type(error).__name__}: {error}"}
    # An earlier version may have journaled secrets.
    return secret.redact_all(made)


def brief(view: View) -> Section:
    """A run in one line, for a list of many."""
    invocations = view.account.invocations
    loss = view.curve["loss"]
    return {
        "status": view.status,
        "step": view.step,
        "steps": view.steps,
        "loss": view.loss,
        "val_loss": finite(view.validation[-1][1]) if view.validation else None,
        "spark": short(means(loss, starts(len(loss), 60)), 4) if len(loss) else [],
        "tokens_per_s": view.tokens_per_s,
        "useful": view.account.ledger.useful,
        "left_s": view.left_s,
        "wall_s": view.account.wall_s,
        "ranks": view.account.ranks,
        "machine": view.plan.get("machine"),
        "began": invocations[0].start if invocations else None,
        "ended": invocations[-1].end if invocations and not view.running else None,
    }


def headline(view: View) -> Section:
    """What one wants to know from across the room."""
    ledger = view.account.ledger
    layout = view.plan.get("layout")
    return brief(view) | {
        "name": view.folder.name,
        "folder": str(view.folder.path),
        "exact": view.account.exact,
        "mfu": view.mfu,
        "effective": ledger.effective,
        "tokens": int(view.curve["tokens"][-1]) if len(view.curve) else 0,
        "batch_tokens": view.plan.get("batch_tokens"),
        "step_s": view.step_s,
        "resumed_from": view.resumed_from,
        "model": model_text(view.plan) if view.plan else None,
        "precision": view.run.train.precision,
        "layout": Layout(**layout).ways if layout else None,
        "dataset": dataset_text(view.plan["dataset"]) if "dataset" in view.plan else None,
        "tokenizer": view.plan.get("tokenizer"),
        "faults": len(troubles(view)),
    }


def curve(view: View) -> Section:
    """The loss and the gradient, thinned with their extremes; the learning rate; validation; what
    the sentinels and restarts did."""
    points = view.curve
    at = starts(len(points))
    if len(points) == 0:
        return {"step": [], "loss": [], "validation": [], "marks": _marks(view)}
    low, high = extremes(points["loss"], at)
    norms = points["grad_norm"].astype(np.float64)
    last = np.append(at[1:], len(points)) - 1  # a block is drawn where it ends
    return {
        "step": points["step"][last].tolist(),
        "loss": short(means(points["loss"], at)),
        "low": short(low),
        "high": short(high),
        "learning_rate": short(points["learning_rate"][last], 4),
        "grad_norm": short(means(norms, at), 4),
        "grad_norm_high": short(extremes(norms, at)[1], 4),
        "clip": view.known_run.train.clip if view.known_run else None,
        "validation": [[step, finite(loss)] for step, loss in view.validation],
        "marks": _marks(view),
    }


def _marks(view: View) -> list[Section]:
    """Places on the curve that are worth a flag, by step."""
    found = []
    for one in view.incidents:
        kind = {"batch_skipped": "skip", "spike": "spike"}.get(one["kind"], "differ")
        found.append({"step": one["step"], "kind": kind, "words": str(one.get("why") or kind)})
    for event in view.told("rollback"):
        if (step := event.whole("before")) is not None:
            words = f"went back to step {event.payload.get('to')}"
            found.append({"step": step, "kind": "rollback", "words": words})
    for trouble in troubles(view):
        if trouble.step is not None:
            words = f"rank {trouble.rank}: {trouble.reason}"
            found.append({"step": trouble.step, "kind": "fault", "words": words})
    unique = {(one["step"], one["kind"], one["words"]): one for one in found}
    return sorted(unique.values(), key=lambda one: int(one["step"]))[-200:]


def speed(view: View) -> Section:
    """Tokens per second while stepping, over all ranks, beside the plan's line and band."""
    batch = view.plan.get("batch_tokens")
    files = [f for f in journal_files(view.folder.journal, "steps") if 0 in f.ranks]
    parts = [read_steps(f.path) for f in files]
    out: Section = {"step": [], "tokens_per_s": [], "plan": _planned_speed(view)}
    out["mfu_per_token"] = view.mfu / view.tokens_per_s if view.mfu and view.tokens_per_s else None
    if not batch or not any(len(part) for part in parts):
        return out
    steps = np.concatenate(parts)
    steps = steps[last_of_each(steps["step"])]
    at = starts(len(steps))
    last = np.append(at[1:], len(steps)) - 1
    mean_s = means(steps["total"].astype(np.float64), at)
    with np.errstate(divide="ignore"):
        out |= {"step": steps["step"][last].tolist(), "tokens_per_s": short(batch / mean_s, 5)}
    return out


def _planned_speed(view: View) -> Section | None:
    plan = view.plan.get("predicted") or {}
    batch, step_s = view.plan.get("batch_tokens"), plan.get("step_s")
    if not batch or not step_s:
        return None
    band = plan.get("bands", {}).get("step_s")
    return {
        "tokens_per_s": batch / step_s,
        "low": batch / band["high"] if band else None,
        "high": batch / band["low"] if band else None,
    }


def plan(view: View) -> Section:
    """Plan against actual by cause, in seconds per rank: the same table as the report's."""
    ledger, ranks = view.account.ledger, max(1, view.account.ranks)
    found = held(view)
    planned = {row.cause: row.predicted for row in found.rows} if found else {}
    return {
        "rows": [
            {
                "cause": str(cause),
                "meaning": cause.meaning,
                "planned_s": None if not planned else (planned[cause] or 0.0) / ranks,
                "actual_s": ledger.seconds[cause] / ranks,
                "share": ledger.share(cause) or 0.0,
            }
            for cause in Cause
        ],
        "useful": ledger.useful,
        "effective": ledger.effective,
        "planned_s": found.planned_s / ranks if found else None,
        "actual_s": ledger.total / ranks,
        "says": found.says() if found else None,
        "off": found.off if found else None,
    }


def where(view: View) -> Section:
    """Rank-seconds by cause over the time of the run."""
    found = view.over_time(BINS)
    shown = max(1, BINS - _not_written_yet(view, found.edges))
    return {
        "causes": [str(cause) for cause in Cause],
        "edges": [round(edge, 2) for edge in found.edges[: shown + 1].tolist()],
        "seconds": [short(column, 4) for column in found.seconds[:shown].T],
    }


def _not_written_yet(view: View, edges: np.ndarray) -> int:
    """Bins at the end that nobody could have told of yet: a span is written when it is over. After
    a while they show, as unexplained: then something is wrong."""
    told = [e.t if e.end is None else e.end for e in view.events[-LAST_EVENTS:]]
    last = max([*told, *view.curve["t"][-1:].tolist()], default=edges[-1])
    if not view.running or edges[-1] - last > PATIENCE_S:
        return 0
    return int((edges[:-1] >= last).sum())


def ranks(view: View) -> Section:
    """A letter for each, and what it spends its time with, in whole per cent."""
    by_rank = view.account.by_rank[: max(1, view.account.ranks)]
    few = by_rank if len(by_rank) <= FEW_RANKS else []
    return health(view).to_json() | {
        "causes": [[_per_cent(one.share(cause)) for cause in Cause] for one in few],
        "compute": [_per_cent(one.useful) for one in by_rank],
        "waits": [_per_cent(one.share(Cause.PEER_WAIT)) for one in by_rank],
    }


def _per_cent(share: float | None) -> int | None:
    return None if share is None or not math.isfinite(share) else round(100 * share)


def story(view: View) -> Section:
    """The timeline: invocations with their phases, faults with their recoveries, saves."""
    found = troubles(view)
    saves = [
        {"t": e.t, "step": e.payload.get("step"), "tier": e.payload.get("tier")}
        for e in view.told("saved")
    ]
    return {
        "invocations": phases(view, found),
        "troubles": [vars(trouble) for trouble in found[-200:]],
        "saves": saves[-400:],
    }


def advised(view: View) -> Section:
    return {"list": [one.to_json() for one in advice(view)]}


def events(view: View) -> Section:
    # What the model writes comes last, from each rank that has something to say.
    last = view.told("evaluate")[-2 * max(1, view.account.ranks) :]
    said = next((e.payload for e in reversed(last) if "sample" in e.payload), {})
    return {"lines": told(view), "sample": said.get("sample"), "prompt": said.get("prompt")}


def fields(view: View) -> Section:
    """The run file, flat, so that several can be compared."""
    return {"values": _flat(to_table(view.run))}


def _flat(table: dict[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in table.items():
        whole = f"{above}{name}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{whole}.")
        else:
            flat[whole] = toml.value(secret.visible(whole, value))
    return flat


SECTIONS: dict[str, Callable[[View], Section]] = {
    "headline": headline,
    "curve": curve,
    "speed": speed,
    "plan": plan,
    "where": where,
    "ranks": ranks,
    "story": story,
    "checkpoints": checkpoints,
    "data": data,
    "energy": energy,
    "advice": advised,
    "events": events,
    "fields": fields,
}
