"""Anomalies that the anomaly guard found, in words."""

from collections.abc import Sequence
from typing import Any

from penstock.ledger.journal.events import (
    BatchSkipped,
    ReplayDiffers,
    ReplicaAtFault,
    ReplicasDiffer,
    SpikeFound,
)
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of

IncidentEvent = BatchSkipped | SpikeFound | ReplicasDiffer | ReplicaAtFault | ReplayDiffers
Incident = LineOf[IncidentEvent]
CLASSES: tuple[type[IncidentEvent], ...] = (
    BatchSkipped,
    SpikeFound,
    ReplicasDiffer,
    ReplicaAtFault,
    ReplayDiffers,
)
MOST_SHOWN = 5


def incidents(lines: Sequence[JournalLine]) -> list[Incident]:
    """Return the incidents among lines, by time.

    A batch is skipped again whenever the run passes it again: only the first time counts.
    """
    seen: set[int] = set()
    new: list[Incident] = []
    for line in lines_of(lines, *CLASSES):
        event = line.event
        if not isinstance(event, BatchSkipped) or event.step not in seen:
            new.append(line)
        if isinstance(event, BatchSkipped | SpikeFound):
            seen.add(event.step)
    return new


def newest_incidents(
    every: Sequence[Incident], most: int = MOST_SHOWN
) -> tuple[int, Sequence[Incident]]:
    """Split incidents into the number of earlier ones and the newest `most`."""
    return max(0, len(every) - most), every[-most:]


def incident_json(incident: Incident) -> dict[str, Any]:
    """Return the incident's kind and fields as they were written."""
    return {"kind": incident.kind, **incident.payload}


def incident_text(event: IncidentEvent) -> str:
    """Describe an incident and what was done about it."""
    match event:
        case BatchSkipped():
            return f"batch left out ({event.why}); it is under bad/"
        case SpikeFound():
            return f"went back and left out the batch ({event.why}); it is under bad/"
        case ReplicasDiffer():
            where = ", ".join(event.tensors) or "their state"
            return f"replicas differed in {where}; went back to step {event.back_to or 0}"
        case ReplicaAtFault():
            sure = "" if event.certain else "one of "
            return f"{sure}{_replicas(event.replicas)} had gone wrong"
        case ReplayDiffers():
            return f"{_replicas(event.replicas)} computed a microbatch differently than a peer"


def _replicas(replicas: list[int]) -> str:
    numbers = [str(replica) for replica in replicas]
    return f"replica{'s' if len(numbers) > 1 else ''} {' and '.join(numbers) or '?'}"
