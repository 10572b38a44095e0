"""The journal of a run that several hosts have led is one journal, on every host."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.store.meeting_place import SharedFolder
from penstock.launch.hosts import journal_sync
from penstock.ledger.journal.read import next_attempt, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder

LINES = st.lists(
    st.tuples(st.floats(0, 1e9), st.text("ab", min_size=1, max_size=3)).map(
        lambda pair: f'{{"t":{pair[0]},"kind":"{pair[1]}"}}\n'.encode()
    ),
    max_size=8,
)


@settings(deadline=None)
@given(LINES, LINES, LINES)
def test_the_union_does_not_depend_on_who_is_first(
    a: list[bytes], b: list[bytes], c: list[bytes]
) -> None:
    one, two, three = b"".join(a), b"".join(b), b"".join(c)
    union = journal_sync.merge_events
    assert sorted(union(one, two).split(b"\n")) == sorted(union(two, one).split(b"\n"))
    assert union(union(one, two), two) == union(one, two)
    left, right = union(union(one, two), three), union(one, union(two, three))
    assert set(left.split(b"\n")) == set(right.split(b"\n"))
    assert set(union(one, two).split(b"\n")) == {*one.split(b"\n"), *two.split(b"\n")}


def test_a_torn_line_is_left_out() -> None:
    assert (
        journal_sync.merge_events(b'{"t":1,"kind":"x"}\n{"t":2,"ki', b"") == b'{"t":1,"kind":"x"}\n'
    )


def test_a_host_that_takes_over_has_all_that_was_on_record(tmp_path: Path) -> None:
    place = SharedFolder(tmp_path / "place")
    first, second = RunFolder(tmp_path / "a" / "run"), RunFolder(tmp_path / "b" / "run")
    for folder in (first, second):
        folder.make()
    first.run_file.write_text("name = 'run'")
    first.plan_file.write_text("{}")
    led = SupervisorJournal(first.journal)
    led.event("invocation", ranks=2)
    led.event("mustered", attempt=0)
    with Journal(first.journal, 0, range(0, 1)) as journal:
        journal.event("start")
        journal.step(1, journal.clock(), 0.1, 0.0, 0.1, 0.0)
    with Journal(second.journal, 0, range(1, 2)) as journal:  # its own rank's
        journal.event("start")
    journal_sync.push(first, place)

    journal_sync.pull(second, place)
    assert second.run_file.read_text() == "name = 'run'"
    assert next_attempt(second.journal) == 1
    took = SupervisorJournal(second.journal)
    took.event("took_over", node="b")
    led.event("late")  # what the first had not put there when it was lost
    journal_sync.push(second, place)
    journal_sync.pull(first, place)
    kinds = [event.kind for event in read_events(first.journal / SUPERVISOR)]
    assert kinds == ["invocation", "mustered", "took_over", "late"]
    names = {path.name for path in first.journal.iterdir()}
    assert names == {
        "a0000-r00000.events",
        "a0000-r00000.steps",
        "a0000-r00001.events",
        SUPERVISOR,
    }


def test_a_shorter_copy_never_replaces_a_longer_one(tmp_path: Path) -> None:
    place, folder = SharedFolder(tmp_path / "place"), RunFolder(tmp_path / "run")
    folder.make()
    path = folder.journal / "a0000-r00000.steps"
    path.write_bytes(b"0123456789")
    journal_sync.push(folder, place)
    path.write_bytes(b"0123456789abcdef")
    journal_sync.pull(folder, place)
    assert path.read_bytes() == b"0123456789abcdef"
    (folder.journal / "a0000-r00000.steps").write_bytes(b"01")
    journal_sync.push(folder, place)
    assert place.get("journal/a0000-r00000.steps") == b"0123456789"
