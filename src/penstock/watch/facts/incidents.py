"""What the sentinels of a run found, in words."""

from collections.abc import Sequence
from typing import Any

from penstock.ledger.journal.read import Event
from penstock.style import plural

KINDS = ("batch_skipped", "spike", "replicas_differ", "replica_at_fault", "replay_differs")
SHOWN = 5


def incidents(events: Sequence[Event]) -> list[dict[str, Any]]:
    """By time. A batch that is skipped again, because it was found bad before, is no news."""
    found = [{"kind": e.kind, **e.payload} for e in events if e.kind in KINDS]
    seen: set[object] = set()
    news = []
    for one in found:
        if one["kind"] != "batch_skipped" or one["step"] not in seen:
            news.append(one)
        if one["kind"] in ("batch_skipped", "spike"):
            seen.add(one["step"])
    return news


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    said = [f"guard    step {one['step']}: {words(one)}" for one in found[-SHOWN:]]
    left = len(found) - len(said)
    return said if left <= 0 else [f"guard    {plural(left, 'earlier incident')}", *said]


def words(one: dict[str, Any]) -> str:
    match one["kind"]:
        case "batch_skipped":
            return f"batch left out ({one['why']}); it is under bad/"
        case "spike":
            return f"went back and left out the batch ({one['why']}); it is under bad/"
        case "replicas_differ":
            where = ", ".join(one["tensors"]) or "their state"
            return f"replicas differed in {where}; went back to step {one['back_to'] or 0}"
        case "replica_at_fault":
            sure = "" if one["certain"] else "one of "
            return f"{sure}{_replicas(one)} had gone wrong"
        case _:
            return f"{_replicas(one)} computed a microbatch differently than a peer"


def _replicas(one: dict[str, Any]) -> str:
    numbers = [str(r) for r in one["replicas"]]
    return f"replica{'s' if len(numbers) > 1 else ''} {' and '.join(numbers) or '?'}"
