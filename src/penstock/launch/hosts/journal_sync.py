"""Copies of a run's journal, run file and plan in the meeting place of its hosts.

Each host has a run folder of its own. The leader pushes these records to the meeting place and
pulls what earlier leaders have put there. So no attempt number is used twice, and `report` shows
the whole run on every host that took part to the end.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.data.store.meeting_place import MeetingPlace, SharedFolder
from penstock.files import write_synced
from penstock.ledger.journal.energy import is_energy_file
from penstock.ledger.journal.records import SUPERVISOR, parse_name
from penstock.run.folder import RunFolder

FILES = ("run.toml", "plan.json")
_JOURNAL, _RUN, _MARK = "journal", "run", "leader/mark"


def merge_events(one: bytes, other: bytes) -> bytes:
    """Merge two copies of an events file: each line once, by time; torn lines are left out.

    Several hosts append to a file of this name, each to its own copy. The lines of one copy stay in
    their order, which is that of their times.
    """
    lines = dict.fromkeys(
        line
        for text in (one, other)
        for line in text.split(b"\n")[:-1]
        if line.startswith(b'{"t":')
    )
    ordered = sorted(lines, key=lambda line: float(line[5:].partition(b",")[0]))
    return b"".join(line + b"\n" for line in ordered)


def push(folder: RunFolder, place: MeetingPlace) -> None:
    """Put every file into the meeting place that has grown since the last push."""
    sizes = place.list(_JOURNAL)
    for path in sorted(folder.journal.iterdir()):
        name = f"{_JOURNAL}/{path.name}"
        if _has_one_writer(path) and path.stat().st_size > sizes.get(name, -1):
            place.put(name, path.read_bytes())
    for name in FILES:
        if (folder.path / name).exists():
            place.put(f"{_RUN}/{name}", (folder.path / name).read_bytes())
    supervisor = folder.journal / SUPERVISOR
    if supervisor.exists():
        place.put(f"{_JOURNAL}/{SUPERVISOR}", supervisor.read_bytes())


def pull(folder: RunFolder, place: MeetingPlace, with_run: bool = True) -> None:
    """Fetch what other hosts have put there and this one lacks.

    A host that shares the run folder with the leader lacks nothing, and must not write to files
    that the leader appends to.
    """
    folder.make()
    sizes = place.list(_JOURNAL)  # before the mark, which is put there first
    if sizes and shares_folder(folder, place):
        return
    for name, size in sizes.items():
        path = folder.journal / Path(name).name
        if path.name == SUPERVISOR:
            own = path.read_bytes() if path.exists() else b""
            write_synced(path, merge_events(place.get(name), own))
        elif _has_one_writer(path) and size > (path.stat().st_size if path.exists() else -1):
            write_synced(path, place.get(name))
    if with_run:
        for name in place.list(_RUN):
            write_synced(folder.path / Path(name).name, place.get(name))


def shares_folder(folder: RunFolder, place: MeetingPlace) -> bool:
    """Return whether the run folder here is that of the last leader, which put a file into it."""
    try:
        mark = place.get(_MARK).decode(errors="replace")
    except FileNotFoundError:
        return False
    return bool(mark) and (folder.path / Path(mark).name).exists()


def _has_one_writer(path: Path) -> bool:
    """Return whether a journal file has one writer: then the longer copy is the newer one."""
    return parse_name(path) is not None or is_energy_file(path.name)


class JournalSync:
    """Push and pull for one host, also in the background.

    It does nothing where the meeting place lies in the run folder: then all hosts share the folder.
    """

    def __init__(self, folder: RunFolder, place: MeetingPlace) -> None:
        self.folder, self.place = folder, place
        shared = isinstance(place, SharedFolder) and place.path.is_relative_to(folder.path)
        self.needed = not shared
        self._may_push: Callable[[], bool] = lambda: False
        self._wanted = threading.Event()
        self._busy = threading.Lock()
        if self.needed:
            threading.Thread(target=self._push_when_wanted, name="sync", daemon=True).start()

    def allow_push(self, leads: Callable[[], bool]) -> None:
        """Allow pushes while `leads()`: only the leader may write to the meeting place."""
        self._may_push = leads

    def publish_mark(self, mark: str) -> None:
        """Say which file the leader has put into its run folder."""
        if self.needed:
            self.place.put(_MARK, mark.encode())

    def push_soon(self) -> None:
        """Push in the background."""
        self._wanted.set()

    def push(self) -> None:
        if self.needed and self._may_push():
            with self._busy:
                push(self.folder, self.place)

    def pull(self) -> None:
        if self.needed:
            with self._busy:
                pull(self.folder, self.place)

    def _push_when_wanted(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            with contextlib.suppress(OSError):  # the next push has it
                self.push()
