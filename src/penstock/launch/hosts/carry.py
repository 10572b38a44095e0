"""The records of a run, carried through the place where its hosts meet.

Each host has a folder of its own. Whoever leads puts the journal, the run file and the plan into
the place, and takes from there what hosts that led before have put; so attempt numbers never come
twice, and `report` tells the whole run on every host that took part to the end.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.files import write_synced
from penstock.launch.hosts.meeting import Folder, Place
from penstock.ledger.journal.energy import is_energy_file
from penstock.ledger.journal.records import SUPERVISOR, parse_name
from penstock.run.folder import RunFolder

FILES = ("run.toml", "plan.json")
_JOURNAL, _RUN = "journal", "run"


def union(one: bytes, other: bytes) -> bytes:
    """Both files of events in one, each line once, by time as far as lines can be read.

    Several hosts append to a file of this name, each to its own copy. The lines of one copy stay in
    their order, which is that of their times; a torn line is left out.
    """
    lines = dict.fromkeys(
        line
        for text in (one, other)
        for line in text.split(b"\n")[:-1]
        if line.startswith(b'{"t":')
    )
    ordered = sorted(lines, key=lambda line: float(line[5:].partition(b",")[0]))
    return b"".join(line + b"\n" for line in ordered)


def push_supervisor(folder: RunFolder, place: Place) -> None:
    """What the supervisor has on record; small, so it goes out with every event that matters."""
    path = folder.journal / SUPERVISOR
    if path.exists():
        place.put(f"{_JOURNAL}/{SUPERVISOR}", path.read_bytes())


def push(folder: RunFolder, place: Place) -> None:
    """Everything that has grown since it was last put there."""
    there = place.list(_JOURNAL)
    for path in sorted(folder.journal.iterdir()):
        name = f"{_JOURNAL}/{path.name}"
        if _travels(path) and path.stat().st_size > there.get(name, -1):
            place.put(name, path.read_bytes())
    for name in FILES:
        if (folder.path / name).exists():
            place.put(f"{_RUN}/{name}", (folder.path / name).read_bytes())
    push_supervisor(folder, place)


def pull(folder: RunFolder, place: Place, with_run: bool = True) -> None:
    """What other hosts have put there and this one lacks."""
    folder.make()
    for name, size in place.list(_JOURNAL).items():
        path = folder.journal / Path(name).name
        if path.name == SUPERVISOR:
            own = path.read_bytes() if path.exists() else b""
            write_synced(path, union(place.get(name), own))
        elif _travels(path) and size > (path.stat().st_size if path.exists() else -1):
            write_synced(path, place.get(name))
    if with_run:
        for name in place.list(_RUN):
            write_synced(folder.path / Path(name).name, place.get(name))


def _travels(path: Path) -> bool:
    """Files of the journal with one writer each, so that the longer copy is the newer one."""
    return parse_name(path) is not None or is_energy_file(path.name)


class Carrier:
    """Does the above beside the work of whoever leads. Nothing to carry where the place is in the
    run's own folder: then the hosts share that."""

    def __init__(self, folder: RunFolder, place: Place) -> None:
        self.folder, self.place = folder, place
        self.needed = not (isinstance(place, Folder) and place.path.is_relative_to(folder.path))
        self.may: Callable[[], bool] = lambda: False  # whether this host leads: only then it puts
        self._wanted = threading.Event()
        self._busy = threading.Lock()
        if self.needed:
            threading.Thread(target=self._work, name="carrier", daemon=True).start()

    def soon(self) -> None:
        """Put what there is into the place, without waiting for it."""
        self._wanted.set()

    def push(self) -> None:
        if self.needed and self.may():
            with self._busy:
                push(self.folder, self.place)

    def pull(self) -> None:
        if self.needed:
            with self._busy:
                pull(self.folder, self.place)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            with contextlib.suppress(OSError):  # comes again with the next word
                self.push()
