"""A process killed at any byte loses only its last record: every prefix of every kind of file."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from journal_lines import line_of
from penstock.errors import PenstockError
from penstock.ledger.journal.read import (
    next_attempt,
    read_curve,
    read_events,
    read_steps,
)
from penstock.ledger.journal.records import (
    CURVE,
    HEADER,
    STEP,
    file_name,
    journal_files,
    parse_name,
)
from penstock.ledger.journal.rollups import totals
from penstock.ledger.journal.writer import Journal, SupervisorJournal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank that evaluated once and did five steps."""
    with Journal(tmp_path, 3, clock=lambda: 100.0) as journal:
        journal.event("start")
        journal.event("ready", t=101.5, note="ünï\ncode")
        for step in range(5):
            journal.step(step, 102.0 + step, 1.0, 0.125, 0.5, 0.25, bubble=0.0625)
            journal.curve(step, 2.0 - step / 4, 1.5, 1e-3, 512.0 * step, t=103.0 + step)
        journal.span("evaluate", 107.0, 108.0, step=4, loss=1.25)
    return tmp_path


def prefixes(path: Path, to: Path) -> Iterator[tuple[int, Path]]:
    """(length, file) for every prefix of a file, one at a time under the same name."""
    data = path.read_bytes()
    for length in range(len(data) + 1):
        (to / path.name).write_bytes(data[:length])
        yield length, to / path.name


def test_events_at_every_byte(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = folder / "a0003-r00000.events"
    whole = read_events(path)
    assert [event.kind for event in whole] == ["start", "ready", "evaluate"]
    assert whole[1] == line_of(101.5, "ready", None, 3, range(1), {"note": "ünï\ncode"})
    assert (whole[2].t, whole[2].end, whole[2].payload) == (107.0, 108.0, {"step": 4, "loss": 1.25})
    data = path.read_bytes()
    for length, cut in prefixes(path, tmp_path_factory.mktemp("cut")):
        assert read_events(cut) == whole[: data[:length].count(b"\n")]


@pytest.mark.parametrize(("kind", "dtype"), [("steps", STEP), ("curve", CURVE)])
def test_records_at_every_byte(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, dtype: np.dtype
) -> None:
    read = {"steps": read_steps, "curve": read_curve}[kind]
    path = folder / f"a0003-r00000.{kind}"
    whole = read(path)
    assert len(whole) == 5
    for length, cut in prefixes(path, tmp_path_factory.mktemp("cut")):
        count = max(0, length - HEADER.size) // dtype.itemsize
        assert np.array_equal(read(cut), whole[:count])


def test_the_fields_come_back(folder: Path) -> None:
    steps = read_steps(folder / "a0003-r00000.steps")
    assert STEP.itemsize == 32
    assert steps[2].tolist() == (104.0, 2, 1.0, 0.125, 0.5, 0.25, 0.0625)
    curve = read_curve(folder / "a0003-r00000.curve")[3]
    assert (curve["t"], curve["loss"], curve["tokens"], curve["step"]) == (106.0, 1.25, 1536.0, 3)
    assert curve["learning_rate"] == np.float32(1e-3)


def test_a_later_supervisor_repairs_the_line_that_was_torn(tmp_path: Path) -> None:
    first = SupervisorJournal(tmp_path)
    first.event("invocation", t=1.0, ranks=4)
    first.event("launch", t=2.0, attempt=0)
    first.close()
    path = tmp_path / "supervisor.events"
    data = path.read_bytes()
    second_line = data.index(b"\n") + 1
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        later = SupervisorJournal(tmp_path)
        later.event("invocation", t=9.0, ranks=2)
        later.close()
        events = read_events(path)
        # A line that only lacked its newline is whole once it has one.
        survivors = (length >= second_line - 1) + (length >= len(data) - 1)
        assert [event.t for event in events] == [*[1.0, 2.0][:survivors], 9.0]
        assert events[-1].payload == {"ranks": 2}


@pytest.mark.parametrize(
    "line",
    ["", "{", "[1]", "7", "null", '{"t":1}', '{"kind":"x"}', '{"t":"1","kind":"x"}',
     '{"t":true,"kind":"x"}', '{"t":NaN,"kind":"x"}', '{"t":1e300,"kind":"x"}',
     '{"t":1,"kind":5}', '{"t":1,"end":"soon","kind":"x"}', "\udcff", "[" * 100_000,
     '{"t":1' + "0" * 400 + ',"kind":"x"}'],
)  # fmt: skip
def test_lines_that_are_not_events_are_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "supervisor.events"
    good = json.dumps({"t": 1, "kind": "good"})
    path.write_text(f"{good}\n{line}\n{good}\n", encoding="utf-8", errors="surrogateescape")
    assert [event.kind for event in read_events(path)] == ["good", "good"]


def test_a_line_may_be_about_some_ranks_of_its_file(tmp_path: Path) -> None:
    with Journal(tmp_path, 0, range(10, 20)) as journal:
        journal.event("ready", t=1.0, ranks=[12, 13])
        journal.event("ready", t=1.0, ranks=[12, 99])  # not all of them wrote here
        journal.event("ready", t=1.0)
    ranks = [event.ranks for event in read_events(journal_files(tmp_path)[0].path)]
    assert ranks == [range(12, 14), range(10, 20), range(10, 20)]


def test_missing_files_read_as_empty(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none.events") == []
    assert len(read_steps(tmp_path / "none.steps")) == 0
    assert totals(tmp_path / "none.steps") is None


def test_a_file_of_another_kind_or_version_is_refused(folder: Path) -> None:
    with pytest.raises(PenstockError, match="not a curve file"):
        read_curve(folder / "a0003-r00000.steps")
    path = folder / "a0003-r00000.curve"
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(PenstockError, match="version 9"):
        read_curve(path)


def test_names_say_attempt_and_ranks(folder: Path) -> None:
    assert file_name(3, range(1000), "steps") == "a0003-r00000-00999.steps"
    wide = parse_name(Path("a12345-r00002-123456.events"))
    assert wide is not None
    assert (wide.attempt, wide.ranks, wide.kind) == (12345, range(2, 123457), "events")
    assert parse_name(Path("supervisor.events")) is None
    assert parse_name(Path("a0001-r00009-00002.steps")) is None
    assert [file.kind for file in journal_files(folder)] == ["curve", "events", "steps"]


def test_attempt_numbers_are_never_used_twice(folder: Path) -> None:
    assert next_attempt(folder) == 4
    with pytest.raises(FileExistsError):
        Journal(folder, 3)
    supervisor = SupervisorJournal(folder)
    supervisor.event("launch", attempt=4)  # and it died before it wrote
    supervisor.close()
    assert next_attempt(folder) == 5
    assert next_attempt(folder / "new") == 0
