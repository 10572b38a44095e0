"""The events of a run as lines of text, for the terminal and the page."""

import json
from dataclasses import dataclass

from penstock.ledger.journal.events import (
    ABSENT,
    AttemptFailed,
    AttemptLaunched,
    BatchSkipped,
    BucketNotCleaned,
    BudgetReached,
    CheckpointAdopted,
    CheckpointLoaded,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointSpan,
    DataSkipped,
    DiscardFailed,
    DisplayFailed,
    EvaluateSpan,
    FastTierReady,
    FeedState,
    GraceOver,
    HangFound,
    HostLost,
    HostRefused,
    HostStrike,
    InvocationEnded,
    InvocationStarted,
    JournalEvent,
    LeaseExpired,
    LocalStateDropped,
    LostStepSpan,
    MomentsDropped,
    PairsRewarded,
    PauseEnded,
    PeerCopyFailed,
    PeerFetchFailed,
    Quarantined,
    RankEnded,
    RankJoined,
    RankReady,
    RankRegrouped,
    RankStarted,
    RankWentBack,
    RecordMended,
    ReferenceReady,
    RegroupRequested,
    RegroupSpan,
    ReplayDiffers,
    ReplicaAtFault,
    ReplicaGone,
    ReplicaLeftOut,
    ReplicasDiffer,
    RollbackSpan,
    RoundEnded,
    RunPaused,
    RunResized,
    SampleFailed,
    SaveFailed,
    SiteJoinedAnew,
    SiteLeaseLost,
    SiteRefused,
    SiteRound,
    SpikeFound,
    StepsTakenBack,
    StepTraced,
    StopSignal,
    StoreUnreachable,
    StragglerChanged,
    StreamChanged,
    TaskScoresEvent,
    TasksFailed,
    WarmUpSpan,
)
from penstock.ledger.journal.read import JournalLine
from penstock.ledger.journal.values import whole
from penstock.ledger.scores import TaskScores
from penstock.policy.restart import EARLY
from penstock.style import format_duration, format_loss, plural
from penstock.watch.facts.incidents import CLASSES, incident_text
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.task_scores import scores_line

MOST = 250
Classes = tuple[type[JournalEvent], ...]
# Events of ranks that are shown as counts and charts: as lines they would hide the rest.
NOT_SHOWN: Classes = (
    RankStarted, RankJoined, RankReady, WarmUpSpan, CheckpointSpan, FeedState, FastTierReady,
    RegroupSpan, RegroupRequested, LostStepSpan, ReplicaGone, StepsTakenBack, PairsRewarded,
    RoundEnded, SiteRound,
)  # fmt: skip
# Every rank writes the same: the first one is shown.
SAME_ON_ALL_RANKS: Classes = (
    EvaluateSpan, CheckpointLoaded, StepTraced, RankWentBack, RollbackSpan, RankRegrouped,
)  # fmt: skip
BAD: Classes = (
    AttemptFailed, ReplicaGone, HangFound, HostLost, Quarantined, SaveFailed, CheckpointRejected,
    ReplicasDiffer, ReplicaAtFault, ReplayDiffers,
)  # fmt: skip
WARNING: Classes = (
    StragglerChanged, SpikeFound, BatchSkipped, DataSkipped, BudgetReached, GraceOver, HostStrike,
    StoreUnreachable, PeerCopyFailed, PeerFetchFailed, DiscardFailed, ReplicaLeftOut, HostRefused,
    LeaseExpired, DisplayFailed, MomentsDropped, StreamChanged, LocalStateDropped, RecordMended,
    SampleFailed, TasksFailed, RollbackSpan, RankWentBack, StopSignal, RankEnded, SiteRefused,
    SiteLeaseLost, SiteJoinedAnew, BucketNotCleaned,
)  # fmt: skip


@dataclass(frozen=True)
class EventLine:
    """An event in words; `level` is a key of `style.LEVEL_STYLES`."""

    t: float
    kind: str
    level: str
    words: str


def event_lines(view: RunView, most: int = MOST) -> list[EventLine]:
    """Return the newest events first; the same event of several ranks is one line."""
    journal = [*view.supervisor_events, *_rank_events(view)]
    shown: dict[tuple[object, ...], EventLine] = {}
    for line in sorted(journal, key=lambda line: line.t)[-3 * most :]:
        words = _words(line)
        if words is not None:
            key = (line.kind, line.attempt, line.payload.get("step"), words)
            shown.setdefault(key, EventLine(line.t, line.kind, _level(line.event), words))
    return list(shown.values())[-most:][::-1]


def _rank_events(view: RunView) -> list[JournalLine]:
    """Return the events of ranks that are worth a line, one for each that all ranks write.

    A run of a thousand ranks has about as many of them as a run of two.
    """
    chosen: list[JournalLine] = []
    for cls in view.rank_event_classes:
        lines = view.rank_events_of(cls)
        if cls in SAME_ON_ALL_RANKS:
            first: dict[tuple[object, ...], JournalLine] = {}
            for line in lines:
                first.setdefault((line.attempt, line.payload.get("step"), line.end is None), line)
            chosen += first.values()
        elif cls not in NOT_SHOWN:
            chosen += lines
    return [line for line in chosen if not _ended_well(line.event)]


def _ended_well(event: JournalEvent) -> bool:
    return isinstance(event, RankEnded) and event.result == "done"


def _level(event: JournalEvent) -> str:
    if isinstance(event, InvocationEnded):
        return {"done": "good", EARLY: "good", "failed": "bad"}.get(str(event.result), "warning")
    if isinstance(event, StragglerChanged) and not event.slow:
        return "good"
    return "bad" if isinstance(event, BAD) else "warning" if isinstance(event, WARNING) else "plain"


def _words(line: JournalLine) -> str | None:
    """Describe an event; None if it is not worth a line."""
    event = line.event
    if isinstance(event, CLASSES):
        return incident_text(event)
    if isinstance(event, EvaluateSpan):
        if not isinstance(event.val_loss, int | float):
            return None
        return f"validation loss {format_loss(event.val_loss)} at step {event.step}"
    words = _run_words(line)
    words = _rank_words(line) if words is None else words
    return _all_fields(line) if words is None else words


def _run_words(line: JournalLine) -> str | None:
    """Describe an event of the whole run, by its supervisor; None for any other."""
    match line.event:
        case InvocationStarted() as began:
            machine = "this machine" if began.machine is ABSENT else began.machine
            return f"started: {plural(whole(began.ranks) or 0, 'rank')} on {machine}"
        case AttemptLaunched():
            return f"attempt {line.attempt} launched"
        case AttemptFailed() as fault:
            action = "" if fault.action is ABSENT else fault.action
            return f"rank {_rank(line, fault.rank)}: {fault.reason}; {action}"
        case ReplicaGone() as lost:
            return f"rank {_rank(line, lost.rank)} lost: {lost.reason}; the others go on"
        case HangFound() as hang:
            return f"rank {_rank(line, hang.rank)} hangs in {hang.phase}: {hang.why}"
        case StragglerChanged(slow=True) as change:
            return f"rank {change.rank} takes {change.factor} times as long as the others"
        case StragglerChanged() as change:
            return f"rank {change.rank} keeps up again"
        case InvocationEnded() as ended:
            error = str(ended.error or "")
            return f"{ended.result}{': ' if error else ''}{error}"
        case SiteRefused() as bad:
            return f"refused of site {bad.site}: {bad.why}"
        case SiteLeaseLost() as lost_lease:
            number = f"round {lost_lease.number}"
            return f"too late for {number}: the samples of this site were given out again"
        case SiteJoinedAnew() as anew:
            gone = f"the rounds after {anew.merged} are deleted"
            return f"away for too long: {gone}; went on from the snapshot of {anew.number}"
        case BucketNotCleaned() as kept:
            return f"old objects of the sites cannot be deleted: {kept.problem}"
        case RecordMended() as mended:
            return str(mended.words)
        case CheckpointAdopted() as adopted:
            return f"step {adopted.step} of run '{adopted.name}' adopted"
        case BudgetReached() as reached:
            return f"{reached.budget} was reached: saving and stopping"
        case RunPaused() as paused:
            return str(paused.why)
        case RunResized() as resized:
            return str(resized.why)
        case PauseEnded():
            return "the pause is over"
        case StopSignal() as stop:
            return f"asked to stop ({stop.signal})"
    return None


def _rank_words(line: JournalLine) -> str | None:
    """Describe an event of a rank; None for any other."""
    match line.event:
        case RankEnded() as end:
            return f"rank {_rank(line, ABSENT)} ended: {end.error or end.result}"
        case CheckpointLoaded() as loaded:
            return f"went on from step {loaded.step} ({loaded.tier})"
        case CheckpointSaved() as saved:
            return f"step {saved.step} saved to {saved.tier}"
        case CheckpointRejected() as rejected:
            return f"checkpoint passed over: {rejected.problem}"
        case SaveFailed() as failed:
            return f"step {failed.step} not saved to {failed.tier}: {failed.error}"
        case RollbackSpan() as rollback if line.end is not None:
            took = format_duration(line.end - line.t)
            return f"went back to step {rollback.to} from {rollback.before} in {took}"
        case RankRegrouped() as group:
            back = f"; replica {_listed(group.healed)} healed" if group.healed else ""
            return f"replicas {_listed(group.members)} go on from step {group.step}{back}"
        case ReferenceReady() as ready:
            how = {"computed": "computed", "cache": "read from an earlier run's copy"}
            did = how.get(str(ready.origin), "read from this run's copy")
            return f"log-probabilities of {ready.pairs} pairs by the reference: {did}"
        case RankWentBack() as back:
            return f"went back to step {back.step}: {back.why}"
        case TaskScoresEvent() as scored:
            found = TaskScores.from_json(line.payload)
            return f"tasks at step {scored.step}: {scores_line(found.scores if found else ())}"
        case TasksFailed() as failed:
            return f"tasks at step {failed.step} failed: {failed.error}"
        case StepTraced() as traced:
            return f"step {traced.step} traced; Perfetto opens what is under traces/"
    return None


def _all_fields(line: JournalLine) -> str:
    """Return the kind of a line with all that it says, also of kinds of later versions."""
    fields = {name: value for name, value in line.payload.items() if name != "attempt"}
    text = f"{line.kind.replace('_', ' ')} {json.dumps(fields, default=str) if fields else ''}"
    return text.strip()[:400]


def _rank(line: JournalLine, rank: object) -> object:
    """Return the rank that an event names, or the first that its file is of."""
    if rank is not ABSENT:
        return rank
    return line.ranks[0] if line.ranks else None


def _listed(numbers: object) -> str:
    return ", ".join(map(str, numbers)) if isinstance(numbers, list) else "?"
