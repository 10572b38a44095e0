"""Journal files of any bytes: whole records, an empty answer, or a message."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.ledger.history import read_history
from penstock.ledger.journal.read import next_attempt, read_curve, read_events, read_steps
from penstock.ledger.journal.records import SUPERVISOR, journal_files, read_records
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import account_of, group_timelines

T0 = 1_790_000_000.0
NAMES = ("a0000-r00000.events", "a0000-r00000.steps", "a0000-r00000.curve", SUPERVISOR)


def journal(folder: Path) -> Path:
    supervisor = SupervisorJournal(folder)
    supervisor.event("invocation", t=T0, ranks=1, machine="one")
    supervisor.event("launch", t=T0 + 1, attempt=0, ranks=1)
    with Journal(folder, 0, range(1)) as made:
        made.event("start", t=T0 + 1)
        made.event("ready", t=T0 + 2)
        for step in range(1, 21):
            made.step(step, T0 + 2 + step, 1.0, 0.1, 0.8, 0.1)
            made.curve(step, 3.0, 1.0, 1e-3, 100.0 * step, t=T0 + 3 + step)
        made.event("end", t=T0 + 30, result="done")
    supervisor.event("ended", t=T0 + 31, result="done", error="")
    supervisor.close()
    return folder


@given(name=st.sampled_from(NAMES), data=st.data())
def test_a_damaged_journal_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = journal(tmp_path_factory.mktemp("run") / "journal")
    path = folder / name
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["flips", "cut", "bytes", "more"]))
    if kind == "flips":
        for at in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), max_size=8)):
            content[at // 8] ^= 1 << at % 8
    elif kind == "cut":
        del content[data.draw(st.integers(0, len(content))) :]
    else:
        drawn = data.draw(st.binary(max_size=300))
        content = bytearray(drawn) if kind == "bytes" else content + drawn
    path.write_bytes(content)
    try:
        read_events(folder / SUPERVISOR)
        read_events(folder / NAMES[0])
        assert len(read_steps(folder / NAMES[1])) <= 20 + 300
        read_curve(folder / NAMES[2])
        next_attempt(folder)
        history = read_history(folder, None)
        found = account_of(history, list(group_timelines(history)))
    except PenstockError:
        return
    total = found.ledger.seconds
    assert all(np.isfinite(value) for value in total.values())


@pytest.mark.parametrize("name", NAMES)
def test_pipes_and_links_are_not_read(tmp_path: Path, name: str) -> None:
    folder, kind = journal(tmp_path / "journal"), name.rpartition(".")[2]
    (folder / name).rename(tmp_path / "moved")
    for make in (lambda path: os.mkfifo(path), lambda path: path.symlink_to(tmp_path / "moved")):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert name not in {file.path.name for file in journal_files(folder)}
        with pytest.raises(OSError, match=r"plain file|symbolic links"):
            read_events(folder / name) if kind == "events" else read_records(folder / name, kind)
    if name == SUPERVISOR:
        with pytest.raises(OSError, match="symbolic links"):
            SupervisorJournal(folder)
