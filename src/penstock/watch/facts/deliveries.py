"""The record of what each outlet has sent: `RUN/outlets.json`.

The outlet process writes it. A later launch reads it and sends what is missing; the report shows
what could not be sent.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.files import write_atomic
from penstock.ledger.journal.events import (
    EvaluateSpan,
    InvocationStarted,
    JournalEvent,
    PairsRewarded,
    TaskScoresEvent,
)
from penstock.ledger.journal.read import LineOf, lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files, read_records
from penstock.run.folder import RunFolder
from penstock.secret import redact
from penstock.untrusted import is_count, parse_table, read_record
from penstock.watch.facts.run_view import RunView

Moment = tuple[int, float]  # an attempt and unix seconds: hosts that took turns may differ
NOTHING: Moment = (-1, 0.0)


@dataclass(frozen=True)
class Delivery:
    """How much of a run one outlet has sent."""

    points: dict[str, int] = field(default_factory=dict)  # of the curve, by name of journal file
    newest: Moment = NOTHING  # of the evaluations, rewards and task scores
    complete: bool = False  # the run is over and nothing is left to send
    problem: str = ""  # what was not sent, why, and what to do; empty if all was

    def has(self, line: LineOf[JournalEvent]) -> bool:
        """Return whether the values of an event of the journal were sent."""
        return _moment(line) <= self.newest


def newest_values(view: RunView, before: int | None = None) -> Moment:
    """Return the moment of the newest evaluation, reward or task score, or of those before an
    attempt.
    """
    lines = view.rank_events_of(EvaluateSpan, PairsRewarded, TaskScoresEvent)
    earlier = (line for line in lines if before is None or (line.attempt or 0) < before)
    return max(map(_moment, earlier), default=NOTHING)


def _moment(line: LineOf[JournalEvent]) -> Moment:
    """Return when a line was written: that of a span at its end."""
    return line.attempt or 0, line.t if line.end is None else line.end


def delivered_before(view: RunView, attempt: int) -> Delivery:
    """Return the delivery of all that was made before an attempt."""
    files = journal_files(view.folder.journal, "curve")
    counts = {
        file.path.name: len(read_records(file.path, "curve"))
        for file in files
        if file.attempt < attempt
    }
    return Delivery(counts, newest_values(view, attempt))


def run_id(folder: RunFolder) -> str:
    """Return an id: the same for every launch of a run, another for a new run of the same name."""
    launches = lines_of(read_events(folder.journal / SUPERVISOR), InvocationStarted)
    born = f"{launches[0].t:.6f}" if launches else ""
    return hashlib.sha256(f"{folder.name}\n{born}".encode()).hexdigest()[:12]


def read_deliveries(folder: RunFolder) -> dict[str, Delivery]:
    """Return the deliveries of a run by outlet; none if the record is damaged or of another run."""
    try:
        table = parse_table(read_record(folder.outlets_file))
    except (OSError, ValueError):
        return {}
    outlets = table.get("outlets")
    if table.get("run") != run_id(folder) or not isinstance(outlets, dict):
        return {}
    return {str(name): _parse(one) for name, one in outlets.items() if isinstance(one, dict)}


def write_deliveries(folder: RunFolder, run: str, deliveries: dict[str, Delivery]) -> None:
    """Write the deliveries of the run with the id `run`."""
    outlets = {name: asdict(one) for name, one in deliveries.items()}
    for one in outlets.values():
        one["problem"] = redact(one["problem"])  # an error of a client may quote an address
    write_atomic(folder.outlets_file, json.dumps({"run": run, "outlets": outlets}, indent=1))


def _parse(table: dict[str, Any]) -> Delivery:
    points, newest, problem = table.get("points"), table.get("newest"), table.get("problem")
    counts = points.items() if isinstance(points, dict) else ()
    return Delivery(
        {str(name): count for name, count in counts if is_count(count)},
        _parse_moment(newest),
        table.get("complete") is True,
        problem if isinstance(problem, str) else "",
    )


def _parse_moment(value: object) -> Moment:
    match value:
        case [int(attempt), float(t)]:
            return attempt, t
    return NOTHING
