"""The events of a run as lines of text, for the terminal and the page."""

import json
from dataclasses import dataclass

from penstock.ledger.journal.read import JournalLine
from penstock.ledger.scores import TaskScores
from penstock.policy.restart import EARLY
from penstock.style import format_duration, format_loss, plural
from penstock.watch.facts.incidents import KINDS, incident_text
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.task_scores import scores_line

MOST = 250
# Shown as counts and charts; as lines they would hide the rest.
NOT_SHOWN = {
    "start",
    "joined",
    "ready",
    "warmup",
    "checkpoint",
    "feed",
    "fast_tier",
    "generation",
    "regroup",
    "mustered",
    "taken_back",
}
# Every rank writes the same: the first one is shown.
SAME_ON_ALL_RANKS = {"evaluate", "resumed", "trace", "went_back", "rollback", "regrouped"}
BAD = {
    "fault", "lost", "hang", "host_lost", "quarantined", "save_failed", "checkpoint_rejected",
    "replicas_differ", "replica_at_fault", "replay_differs",
}  # fmt: skip
WARNING = {
    "straggler", "spike", "batch_skipped", "data_skipped", "budget_reached", "grace_over", "strike",
    "place_unreachable", "copy_failed", "fetch_failed", "forget_failed", "left_out",
    "host_refused", "lease_lost", "display_failed", "moments_dropped", "stream_changed",
    "local_state_dropped", "record_mended", "sample_failed", "rollback", "went_back",
    "asked_to_stop", "tasks_failed",
}  # fmt: skip


@dataclass(frozen=True)
class EventLine:
    """An event in words; `level` is a key of `style.LEVEL_STYLES`."""

    t: float
    kind: str
    level: str
    words: str


def event_lines(view: RunView, most: int = MOST) -> list[EventLine]:
    """Return the newest events first; the same event of several ranks is one line."""
    events = [*view.supervisor_events, *_rank_events(view)]
    lines: dict[tuple[object, ...], EventLine] = {}
    for event in sorted(events, key=lambda e: e.t)[-3 * most :]:
        words = _words(event)
        if words is not None:
            key = (event.kind, event.attempt, event.payload.get("step"), words)
            lines.setdefault(key, EventLine(event.t, event.kind, _level(event), words))
    return list(lines.values())[-most:][::-1]


def _rank_events(view: RunView) -> list[JournalLine]:
    """Return the events of ranks that are worth a line, one for each that all ranks write.

    A run of a thousand ranks has about as many of them as a run of two.
    """
    events: list[JournalLine] = []
    for kind in view.rank_event_kinds:
        # A rank writes `lost` for a step that it lost, the supervisor for a lost rank.
        if kind in NOT_SHOWN or kind == "lost":
            continue
        if kind not in SAME_ON_ALL_RANKS:
            events += view.rank_events_of(kind)
            continue
        first: dict[tuple[object, ...], JournalLine] = {}
        for event in view.rank_events_of(kind):
            first.setdefault((event.attempt, event.payload.get("step"), event.end is None), event)
        events += first.values()
    return [e for e in events if e.kind != "end" or e.payload.get("result") != "done"]


def _level(event: JournalLine) -> str:
    if event.kind == "ended":
        return {"done": "good", EARLY: "good", "failed": "bad"}.get(
            str(event.payload.get("result")), "warning"
        )
    if event.kind == "straggler" and not event.payload.get("slow"):
        return "good"
    if event.kind == "end":
        return "warning"
    return "bad" if event.kind in BAD else "warning" if event.kind in WARNING else "plain"


def _words(event: JournalLine) -> str | None:
    """Describe an event; None if it is not worth a line."""
    payload = event.payload
    rank = payload.get("rank", event.ranks[0] if event.ranks else None)
    if event.kind in KINDS:
        return incident_text({"kind": event.kind, **payload})
    match event.kind:
        case "invocation":
            ranks = plural(event.whole("ranks") or 0, "rank")
            return f"started: {ranks} on {payload.get('machine', 'this machine')}"
        case "launch":
            return f"attempt {event.attempt} launched"
        case "fault":
            return f"rank {rank}: {payload.get('reason')}; {payload.get('action', '')}"
        case "lost":
            return f"rank {rank} lost: {payload.get('reason')}; the others go on"
        case "hang":
            return f"rank {rank} hangs in {payload.get('phase')}: {payload.get('why')}"
        case "straggler" if payload.get("slow"):
            return f"rank {rank} takes {payload.get('factor')} times as long as the others"
        case "straggler":
            return f"rank {rank} keeps up again"
        case "ended":
            error = str(payload.get("error") or "")
            return f"{payload.get('result')}{': ' if error else ''}{error}"
        case "end":
            return f"rank {rank} ended: {payload.get('error') or payload.get('result')}"
        case "resumed":
            return f"went on from step {payload.get('step')} ({payload.get('tier')})"
        case "evaluate" if isinstance(value := payload.get("val_loss"), int | float):
            return f"validation loss {format_loss(value)} at step {payload.get('step')}"
        case "evaluate":
            return None
        case "task_scores":
            found = TaskScores.from_json(payload)
            line = scores_line(found.scores if found else ())
            return f"tasks at step {payload.get('step')}: {line}"
        case "tasks_failed":
            return f"tasks at step {payload.get('step')} failed: {payload.get('error')}"
        case "saved":
            return f"step {payload.get('step')} saved to {payload.get('tier')}"
        case "record_mended":
            return str(payload.get("words"))
        case "checkpoint_rejected":
            return f"checkpoint passed over: {payload.get('problem')}"
        case "adopted":
            return f"step {payload.get('step')} of run '{payload.get('name')}' adopted"
        case "save_failed":
            where = f"step {payload.get('step')} not saved to {payload.get('tier')}"
            return f"{where}: {payload.get('error')}"
        case "rollback" if event.end is not None:
            took = format_duration(event.end - event.t)
            return f"went back to step {payload.get('to')} from {payload.get('before')} in {took}"
        case "regrouped":
            back = f"; replica {_listed(payload['healed'])} healed" if payload.get("healed") else ""
            return (
                f"replicas {_listed(payload.get('members'))} go on from step "
                f"{payload.get('step')}{back}"
            )
        case "went_back":
            return f"went back to step {payload.get('step')}: {payload.get('why')}"
        case "budget_reached":
            return f"{payload.get('budget')} was reached: saving and stopping"
        case "asked_to_stop":
            return f"asked to stop ({payload.get('signal')})"
        case "trace":
            return f"step {payload.get('step')} traced; Perfetto opens what is under traces/"
    about = {k: v for k, v in payload.items() if k != "attempt"}
    text = f"{event.kind.replace('_', ' ')} {json.dumps(about, default=str) if about else ''}"
    return text.strip()[:400]


def _listed(numbers: object) -> str:
    return ", ".join(map(str, numbers)) if isinstance(numbers, list) else "?"
