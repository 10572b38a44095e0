"""Anomalies that the anomaly guard found, in words."""

from collections.abc import Sequence
from typing import Any

from penstock.ledger.journal.read import JournalLine

KINDS = ("batch_skipped", "spike", "replicas_differ", "replica_at_fault", "replay_differs")
MOST_SHOWN = 5


def incidents(events: Sequence[JournalLine]) -> list[dict[str, Any]]:
    """Return the incidents among events, by time.

    A batch is skipped again whenever the run passes it again: only the first time counts.
    """
    payloads = [{"kind": e.kind, **e.payload} for e in events if e.kind in KINDS]
    seen: set[object] = set()
    new = []
    for payload in payloads:
        if payload["kind"] != "batch_skipped" or payload["step"] not in seen:
            new.append(payload)
        if payload["kind"] in ("batch_skipped", "spike"):
            seen.add(payload["step"])
    return new


def newest_incidents(
    found: Sequence[dict[str, Any]], most: int = MOST_SHOWN
) -> tuple[int, Sequence[dict[str, Any]]]:
    """Split incidents into the number of earlier ones and the newest `most`."""
    return max(0, len(found) - most), found[-most:]


def incident_text(incident: dict[str, Any]) -> str:
    """Describe an incident and what was done about it."""
    match incident["kind"]:
        case "batch_skipped":
            return f"batch left out ({incident['why']}); it is under bad/"
        case "spike":
            return f"went back and left out the batch ({incident['why']}); it is under bad/"
        case "replicas_differ":
            where = ", ".join(incident["tensors"]) or "their state"
            return f"replicas differed in {where}; went back to step {incident['back_to'] or 0}"
        case "replica_at_fault":
            sure = "" if incident["certain"] else "one of "
            return f"{sure}{_replicas(incident)} had gone wrong"
        case _:
            return f"{_replicas(incident)} computed a microbatch differently than a peer"


def _replicas(incident: dict[str, Any]) -> str:
    numbers = [str(r) for r in incident["replicas"]]
    return f"replica{'s' if len(numbers) > 1 else ''} {' and '.join(numbers) or '?'}"
