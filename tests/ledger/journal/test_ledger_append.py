"""Appending to a disk that is full now and then: nothing is lost, doubled or out of order."""

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.journal import writer
from penstock.ledger.journal.read import read_events, read_steps
from penstock.ledger.journal.writer import Appender, Journal, SupervisorJournal

real_write, real_open = os.write, os.open


class Disk:
    """Takes `room` bytes and is then full; None is a disk without end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC
        monkeypatch.setattr(writer.os, "write", self.write)
        monkeypatch.setattr(writer.os, "open", self.open)

    def write(self, file: int, data: bytes) -> int:
        if self.room is None:
            return real_write(file, data)
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        done = real_write(file, bytes(data[: self.room]))
        self.room -= done
        return done

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if self.room == 0 and self.error == errno.EROFS:
            raise OSError(self.error, os.strerror(self.error))
        return real_open(path, flags, mode)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@given(st.lists(st.tuples(st.binary(max_size=20), st.none() | st.integers(0, 15)), max_size=20))
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_a_beginning_of_what_was_appended(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[bytes, int | None]]
) -> None:
    path = tmp_path_factory.mktemp("append") / "file"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        file = Appender(path, os.O_EXCL)
        whole = b""
        for data, room in writes:
            disk.room = room
            file.append(data, synced=bool(len(data) % 2))
            whole += data
            assert whole.startswith(path.read_bytes())
            assert room is not None or path.read_bytes() == whole
        disk.room = None
        file.close()
    assert path.read_bytes() == whole


def test_a_journal_on_a_full_disk_is_whole_once_there_is_room(tmp_path: Path, disk: Disk) -> None:
    journal = Journal(tmp_path, 0)
    journal.event("start")
    journal.step(1, 1.0, 0.5, 0.1, 0.2, 0.1)
    disk.room = 11  # within a record
    journal.step(2, 2.0, 0.5, 0.1, 0.2, 0.1)
    journal.event("save_failed", why="no room")
    journal.step(3, 3.0, 0.5, 0.1, 0.2, 0.1)
    assert [e.kind for e in read_events(tmp_path / "a0000-r00000.events")] == ["start"]
    assert len(read_steps(tmp_path / "a0000-r00000.steps")) == 1
    disk.room = None
    journal.event("end")
    journal.step(4, 4.0, 0.5, 0.1, 0.2, 0.1)
    kinds = [e.kind for e in read_events(tmp_path / "a0000-r00000.events")]
    assert kinds == ["start", "save_failed", "end"]
    assert read_steps(tmp_path / "a0000-r00000.steps")["step"].tolist() == [1, 2, 3, 4]


def test_a_file_is_made_when_the_disk_can_be_written_again(tmp_path: Path, disk: Disk) -> None:
    disk.room, disk.error = 0, errno.EROFS
    journal = SupervisorJournal(tmp_path)
    journal.event("invocation", ranks=1)
    assert not (tmp_path / "supervisor.events").exists()
    disk.room = None
    journal.event("ended", result="done")
    assert [e.kind for e in read_events(tmp_path / "supervisor.events")] == ["invocation", "ended"]


def test_other_errors_are_not_for_later(tmp_path: Path, disk: Disk) -> None:
    file = Appender(tmp_path / "file", os.O_EXCL)
    disk.room, disk.error = 0, errno.EBADF
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(b"data")
    with pytest.raises(FileExistsError):
        Appender(tmp_path / "file", os.O_EXCL)


def test_a_disk_that_stays_full_is_told_in_the_end(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_BYTES", 100)
    file = Appender(tmp_path / "file", 0)
    disk.room = 0
    file.append(b"x" * 100)
    with pytest.raises(OSError, match="No space left"):
        file.append(b"x")


def test_two_threads_append_whole_lines(tmp_path: Path) -> None:
    file = Appender(tmp_path / "file", 0)

    def write(letter: bytes) -> None:
        for _ in range(500):
            file.append(letter * 30 + b"\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "file").read_bytes().splitlines()
    assert sorted(lines) == [b"a" * 30] * 500 + [b"b" * 30] * 500


def test_a_signal_between_two_lines_writes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor's handler tells that it was asked to stop, whatever is being written."""
    file = Appender(tmp_path / "file", 0)

    def interrupted(handle: int, data: bytes) -> int:
        monkeypatch.setattr(writer.os, "write", real_write)
        file.append(b"signal\n")
        return real_write(handle, data)

    monkeypatch.setattr(writer.os, "write", interrupted)
    file.append(b"line\n")
    file.append(b"next\n")
    assert sorted((tmp_path / "file").read_bytes().splitlines()) == [b"line", b"next", b"signal"]
