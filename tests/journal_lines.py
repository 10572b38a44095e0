"""Journal lines made by hand, as if they had been read from a file."""

from penstock.ledger.journal.events import parse_event
from penstock.ledger.journal.read import JournalLine, LineOf


def line_of(
    t: float,
    kind: str,
    end: float | None = None,
    attempt: int | None = None,
    ranks: range = range(0),
    payload: dict[str, object] | None = None,
) -> JournalLine:
    fields = {} if payload is None else payload
    event = parse_event(kind, end is not None, fields)
    assert event is not None, f"{kind}: a field that is needed is missing in {fields}"
    return LineOf(t, event, end, attempt, ranks, fields)
