"""The sections of a run's page, as plain values for JSON.

A section is computed from one reading of the run folder. If a section cannot be computed, because a
file is damaged or not yet there, it says so and leaves the others alone.
"""

import math
from collections.abc import Callable
from typing import Any

from penstock import secret
from penstock.errors import PenstockError
from penstock.guard.checkpoints import list_checkpoints
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import ABSENT, EvaluateSpan, FeedState
from penstock.meter.clock import now
from penstock.run import toml
from penstock.run.save import to_table
from penstock.style import format_duration, plural
from penstock.watch.facts.downsample import block_means, block_starts, json_numbers
from penstock.watch.facts.event_lines import event_lines
from penstock.watch.facts.rewards import latest_rewards
from penstock.watch.facts.rounds import HEADINGS
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.task_scores import newest_columns, score_text
from penstock.watch.facts.timeline import invocation_phases
from penstock.watch.report.scores import score_rows
from penstock.watch.web.chart_sections import Section, curve, speed, time_over_causes

FEW_RANKS = 8  # up to so many, each rank shows its causes
MOST_CHECKPOINTS = 8
MOST_DEVICES = 64
MOST_SCORES = 64
MOST_DISRUPTIONS, MOST_SAVES = 200, 400
# Errors that a half-written or damaged run folder raises in a reader.
UNREADABLE = (
    PenstockError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip


def page_sections(view: RunView) -> dict[str, Section]:
    """Compute every section of a run's page, by name."""
    facts = RunFacts(view)
    return {name: _section(make, facts) for name, make in SECTIONS.items()}


def _section(make: Callable[[RunFacts], Section], facts: RunFacts) -> Section:
    try:
        section = make(facts)
    except UNREADABLE as error:
        section = {"problem": f"{type(error).__name__}: {error}"}
    # An earlier version may have journaled secrets.
    return secret.redact_all(section)


def run_summary(view: RunView) -> Section:
    """Return a run in one line, for a list of many."""
    invocations = view.account.invocations
    loss = view.curve["loss"]
    return {
        "status": view.status,
        "step": view.step,
        "steps": view.steps,
        "loss": view.loss,
        "val_loss": view.validation_loss,
        "spark": json_numbers(block_means(loss, block_starts(len(loss), 60)), 4)
        if len(loss)
        else [],
        "tokens_per_s": view.tokens_per_s,
        "useful": view.account.ledger.useful,
        "left_s": view.remaining_s,
        "wall_s": view.account.wall_s,
        "ranks": view.account.ranks,
        "machine": view.launch.machine or None,
        "began": invocations[0].start if invocations else None,
        "ended": invocations[-1].end if invocations and not view.running else None,
    }


def headline(facts: RunFacts) -> Section:
    """Return the title of the page and its big figures."""
    view = facts.view
    rewards = latest_rewards(view)
    return run_summary(view) | {
        "name": view.folder.name,
        "folder": str(view.folder.path),
        "exact": view.account.exact,
        "mfu": view.mfu,
        "effective": view.account.ledger.effective,
        "tokens": view.tokens,
        "batch_tokens": view.launch.batch_tokens or None,
        "step_s": view.step_s,
        "resumed_from": view.resumed_from,
        "model": view.model_text or None,
        "precision": view.run.train.precision,
        "layout": view.layout_text or None,
        "dataset": view.dataset_text or None,
        "tokenizer": view.launch.tokenizer or None,
        "loss_kind": view.run.train.loss_kind,
        "accuracy": rewards.accuracy if rewards else None,
        "faults": len(facts.disruptions),
    }


def plan(facts: RunFacts) -> Section:
    """Return plan against actual by cause, in seconds per rank."""
    view, found = facts.view, facts.plan
    ledger, ranks = view.account.ledger, max(1, view.account.ranks)
    return {
        "rows": [
            {
                "cause": str(row.cause),
                "meaning": row.cause.meaning,
                "planned_s": row.planned_s,
                "actual_s": row.actual_s,
                "share": row.share,
            }
            for row in facts.by_cause
        ],
        "useful": ledger.useful,
        "effective": ledger.effective,
        "planned_s": found.planned_s / ranks if found else None,
        "actual_s": ledger.total / ranks,
        "says": found.sentence() if found else None,
        "off": found.step_deviation if found else None,
    }


def ranks(facts: RunFacts) -> Section:
    """Return a letter for each rank, and its causes in whole per cent."""
    account = facts.view.account
    by_rank = account.by_rank[: max(1, account.ranks)]
    few = by_rank if len(by_rank) <= FEW_RANKS else []
    return facts.health.to_json() | {
        "causes": [[_percent(ledger.share(cause)) for cause in Cause] for ledger in few],
        "compute": [_percent(ledger.useful) for ledger in by_rank],
        "waits": [_percent(ledger.share(Cause.PEER_WAIT)) for ledger in by_rank],
    }


def _percent(share: float | None) -> int | None:
    return None if share is None or not math.isfinite(share) else round(100 * share)


def timeline(facts: RunFacts) -> Section:
    """Return invocations with their phases, faults with their recoveries, and saves."""
    saves = [{"t": save.t, "step": save.step, "tier": save.tier} for save in facts.saves]
    return {
        "invocations": invocation_phases(facts.view, facts.disruptions),
        "troubles": [vars(one) for one in facts.disruptions[-MOST_DISRUPTIONS:]],
        "saves": saves[-MOST_SAVES:],
    }


def checkpoints(facts: RunFacts) -> Section:
    """Return the newest checkpoints. Remote places are not read: their saves are in the journal."""
    view = facts.view
    listed, _ = list_checkpoints(view.folder, elsewhere=False)
    rows: list[dict[str, Any]] = [
        {
            "step": checkpoint.step,
            "tier": checkpoint.tier,
            "bytes": checkpoint.bytes,
            "t": None if checkpoint.age_s is None else round(now() - checkpoint.age_s),
            "state": checkpoint.state,
            "good": checkpoint.state.startswith("whole"),
            "path": checkpoint.files.where,
        }
        for checkpoint in listed
    ]
    for save in facts.saves[::-1]:
        if save.tier == "remote" and len(rows) < MOST_CHECKPOINTS:
            about = {"step": save.step, "tier": save.tier, "bytes": save.bytes, "path": save.path}
            rows.append({**about, "t": round(save.t), "state": "saved", "good": True})
    rows.sort(key=lambda checkpoint: -int(str(checkpoint["step"])))
    held_up_s = view.account.ledger.seconds[Cause.CHECKPOINT] / max(1, view.account.ranks)
    return {
        "kept": rows[:MOST_CHECKPOINTS],
        "saved": len(facts.saves),
        "says": f"{plural(len(facts.saves), 'durable save')} so far; steps were held up for "
        f"{format_duration(held_up_s)}",
    }


def data(facts: RunFacts) -> Section:
    """Return the dataset, how full the feed's buffer is, and the time that ranks waited for it."""
    view = facts.view
    feed = next(reversed(view.rank_events_of(FeedState)), None)
    seconds = view.account.ledger.seconds[Cause.DATA_WAIT]
    return {
        "dataset": view.dataset_text or None,
        "samples": view.launch.samples or None,
        "feed": feed.payload | {"t": feed.t} if feed else None,
        "tokens": view.tokens,
        "waited_s": seconds / max(1, view.account.ranks),
        "waited": view.account.ledger.share(Cause.DATA_WAIT),
        "skipped": len(view.skipped_blocks),
    }


def energy(facts: RunFacts) -> Section:
    """Return joules, USD and gCO2e so far and to go; null if unknown."""
    _ = facts.view.run  # a damaged run file is the problem to show
    values = facts.energy.to_json() if facts.energy else None
    if values:
        values["devices"] = values["devices"][:MOST_DEVICES]
    return {"energy": values, "costs": facts.costs.to_json() if facts.costs else None}


def rounds(facts: RunFacts) -> Section:
    """Return the rounds of replicas that take local steps, a row for each replica."""
    found = facts.rounds
    if found is None:
        return {"titles": [], "rows": []}
    return {"says": found.words(), "titles": HEADINGS[1:], "rows": found.rows()}


def advice(facts: RunFacts) -> Section:
    return {"list": [item.to_json() for item in facts.advice]}


def events(facts: RunFacts) -> Section:
    """Return the newest events, and the last sample that the model wrote."""
    view = facts.view
    # Each rank writes an evaluation, and only some have the sample: look at the last of all ranks.
    last = view.rank_events_of(EvaluateSpan)[-2 * max(1, view.account.ranks) :]
    written = next((e.event for e in reversed(last) if e.event.sample is not ABSENT), None)
    return {
        "lines": [vars(line) for line in event_lines(view)],
        "sample": written.sample if written else None,
        "prompt": written.prompt if written and written.prompt is not ABSENT else None,
    }


def tasks(facts: RunFacts) -> Section:
    """Return the newest scores of benchmark tasks: a title for each column, and rows of text."""
    columns = newest_columns(facts.view.task_scores)
    rows = [[task, metric, *map(score_text, row)] for task, metric, row in score_rows(columns)]
    return {"titles": [title for title, _ in columns], "rows": rows[:MOST_SCORES]}


def fields(facts: RunFacts) -> Section:
    """Return the fields of the run file with dotted names, so that runs can be compared."""
    return {"values": _flat(to_table(facts.view.run))}


def _flat(table: dict[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in table.items():
        dotted = f"{above}{name}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{dotted}.")
        else:
            flat[dotted] = toml.format_value(secret.visible(dotted, value))
    return flat


SECTIONS: dict[str, Callable[[RunFacts], Section]] = {
    "headline": headline,
    "curve": curve,
    "speed": speed,
    "plan": plan,
    "where": time_over_causes,
    "ranks": ranks,
    "story": timeline,
    "checkpoints": checkpoints,
    "data": data,
    "rounds": rounds,
    "tasks": tasks,
    "energy": energy,
    "advice": advice,
    "events": events,
    "fields": fields,
}
