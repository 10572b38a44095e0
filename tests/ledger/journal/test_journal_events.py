"""The kinds of journal lines: every one that is written is registered, documented and read back."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.ledger.journal import events
from penstock.ledger.journal.events import ABSENT, MOMENTS, SPANS, JournalEvent
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.writer import Journal, SupervisorJournal

SOURCE = Path(__file__).parents[3] / "src" / "penstock"
CLASSES = [*MOMENTS.values(), *SPANS.values()]
RAW = ("event", "span")  # methods that write a line with the kind in their first argument


def raw_kinds(source: str) -> list[str]:
    """Return the kind of every line that a source writes by a text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        on_journal = "journal" in ast.unparse(node.func.value)
        if node.func.attr in RAW and on_journal:
            found += _texts(node.args[0])
    return found


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=str)
def test_every_line_is_written_by_its_class(path: Path) -> None:
    assert raw_kinds(path.read_text()) == []


def test_the_search_sees_a_line_that_is_written_by_a_text() -> None:
    assert raw_kinds("self.journal.event('unheard_of', step=3)") == ["unheard_of"]
    assert raw_kinds("journal.span('ready' if x else 'held', 1, 2)") == ["ready", "held"]
    assert raw_kinds("journal.write(RankReady(step=3))") == []


# What shows a line as it is, also one of a later version.
SHOWS_LINES = SOURCE / "watch" / "facts" / "event_lines.py"
READERS = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SHOWS_LINES and re.search(r"journal\.read import|\bRunView\b", path.read_text())
]


def untyped_reads(source: str) -> list[str]:
    """Return where a source looks at the fields or the kind of a line by a text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="payload")):
                found.append(ast.unparse(node))
            case ast.Attribute(attr="get", value=ast.Attribute(attr="payload")):
                found.append(ast.unparse(node))
            case ast.Compare(left=ast.Attribute(attr="kind"), comparators=[right]):
                texts = [n.value for n in ast.walk(right) if isinstance(n, ast.Constant)]
                found += [ast.unparse(node)] * bool({*MOMENTS, *SPANS} & {*texts})
    return found


@pytest.mark.parametrize("path", READERS, ids=str)
def test_readers_match_on_classes(path: Path) -> None:
    assert untyped_reads(path.read_text()) == []


def test_the_search_sees_a_line_that_is_read_by_a_text() -> None:
    assert untyped_reads("line.payload['step']") == ["line.payload['step']"]
    assert untyped_reads("line.payload.get('step', 0)") == ["line.payload.get"]
    assert untyped_reads("x = [e for e in events if e.kind == 'ready']") == ["e.kind == 'ready'"]
    assert len(untyped_reads("line.kind in ('fault', 'unheard_of')")) == 1
    assert untyped_reads("machine.kind == 'cpu' or line.event.step") == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_registered_kind_is_written_somewhere(cls: type[JournalEvent]) -> None:
    sources = [p.read_text() for p in SOURCE.rglob("*.py") if p.name != "events.py"]
    assert any(re.search(rf"\b{cls.__name__}\b", source) for source in sources)


def made(cls: type[JournalEvent]) -> JournalEvent:
    """Return an event with a value of a needed type, or a number, in every field."""
    samples = {int: 3, str: "x", list: [1], bool: True, float: 0.5}
    types = {f.name: f.metadata.get("needed", (int,))[0] for f in fields(cls)}
    return cls(**{name: samples[kind] for name, kind in types.items()})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_event_is_read_as_it_was_written(cls: type[JournalEvent], tmp_path: Path) -> None:
    event = made(cls)
    with Journal(tmp_path, 0) as journal:
        if cls in SPANS.values():
            journal.write_span(event, 1.0, 2.0)
        else:
            journal.write(event, t=1.0)
    (line,) = read_events(tmp_path / "a0000-r00000.events")
    found = line.event
    assert type(found) is cls
    shared = {"ranks"} & {f.name for f in fields(cls)}  # of a rank's line they belong to the line
    for field in fields(cls):
        if field.name not in shared:
            assert getattr(found, field.name) == getattr(event, field.name)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_older_and_newer_lines_are_read(cls: type[JournalEvent]) -> None:
    whole = made(cls).to_payload()
    wanted = events.NEEDED.get(cls.kind, {}) if cls in MOMENTS.values() else {}
    older = cls.from_payload({name: whole[name] for name in wanted})
    assert older is not None
    assert all(getattr(older, f.name) is ABSENT for f in fields(cls) if f.name not in wanted)
    assert cls.from_payload(whole | {"of_a_later_version": 1}) == made(cls)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, wanted in events.NEEDED.items() for name in wanted]
)
@pytest.mark.parametrize("value", [None, {}, 1j], ids=["missing", "table", "no JSON"])
def test_a_line_without_what_readers_rely_on_is_damaged(
    kind: str, name: str, value: object
) -> None:
    payload = made(MOMENTS[kind]).to_payload() | {name: value}
    assert MOMENTS[kind].from_payload(payload) is None


def test_the_bytes_of_a_line_are_those_of_earlier_versions(tmp_path: Path) -> None:
    journal = SupervisorJournal(tmp_path)
    journal.write(events.AttemptLaunched(attempt=2, ranks=8), t=5.0)
    journal.write(events.InvocationEnded(result="done", error=None), t=6.0)
    journal.event("launch", t=5.0, attempt=2, ranks=8)
    journal.close()
    first, second, third = (tmp_path / "supervisor.events").read_bytes().splitlines()
    assert first == b'{"t":5.0,"kind":"launch","attempt":2,"ranks":8}' == third
    assert second == b'{"t":6.0,"kind":"ended","result":"done","error":null}'
    assert list(json.loads(first)) == ["t", "kind", "attempt", "ranks"]


def test_a_kind_may_name_a_moment_and_a_span() -> None:
    assert type(events.parse_event("lost", False, {})) is events.ReplicaGone
    assert type(events.parse_event("lost", True, {})) is events.LostStepSpan
    # An older version may have written a span as a moment: it is what its kind says.
    assert type(events.parse_event("evaluate", False, {})) is events.EvaluateSpan


def test_a_line_of_a_later_version_keeps_all_that_it_says(tmp_path: Path) -> None:
    journal = SupervisorJournal(tmp_path)
    journal.event("unheard_of", t=1.0, attempt=3, what="x")
    journal.event("launch", t=2.0, attempt=3, to_payload="x", field_names=[])
    journal.close()
    first, second = read_events(tmp_path / "supervisor.events")
    assert first.event == events.UnknownEvent("unheard_of")
    assert (first.kind, first.attempt, first.payload["what"]) == ("unheard_of", 3, "x")
    assert second.event.to_payload() == {"attempt": 3}  # a field cannot hide a method
    assert second.payload["to_payload"] == "x"
    assert isinstance(second.event, events.AttemptLaunched)
    assert f"{second.event.ranks}" == "None"


def test_every_kind_says_what_it_is() -> None:
    assert [cls.__name__ for cls in CLASSES if not cls.__doc__ or "(" in cls.__doc__[:20]] == []
    assert len({cls.__name__ for cls in CLASSES}) == len(CLASSES)
