"""The runs that can be looked at, and what was last seen of each.

Reading a run takes time from the ranks that train it. So a run is read only while somebody looks,
at most once a second, and at most for a small share of the time; everybody who looks gets the same.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.ledger.journal.follow import garbage_collection_paused
from penstock.run.folder import RunFolder, every
from penstock.secret import redact
from penstock.watch.facts.supplies import Section
from penstock.watch.facts.view import View
from penstock.watch.web.snapshot import UNREADABLE, brief, snapshot

PAUSE_S = 1.0
READ_SHARE = 0.1  # of the time, for a run that is slow to read
MOST_LISTED = 200
Texts = dict[str, str]  # JSON of each section


@dataclass
class Seen:
    """The last reading of one thing; the lock makes several who ask at once read it once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    texts: Texts = field(default_factory=dict)
    mark: object = None  # what the folder looked like
    next_s: float = 0.0
    exact: bool = True  # set by who makes it: a first answer may be a quick one

    def read(self, mark: Callable[[], object], make: Callable[[], Texts]) -> Texts:
        """What `make` makes of it, where it is time and `mark` has changed or is None."""
        with self.lock:
            began = time.monotonic()
            if began >= self.next_s:
                found = mark()
                if found is None or found != self.mark or not self.exact:
                    self.texts, self.mark = make(), found
                spent = time.monotonic() - began
                self.next_s = time.monotonic() + max(PAUSE_S, spent / READ_SHARE)
            return self.texts


@dataclass
class Desk:
    """`chosen` are shown wherever they lie; without any, all runs below `root` are."""

    root: str
    chosen: list[RunFolder] = field(default_factory=list)
    _runs: dict[str, Seen] = field(default_factory=dict)
    _lines: dict[Path, Seen] = field(default_factory=dict)
    _list: Seen = field(default_factory=Seen)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def runs(self) -> dict[str, RunFolder]:
        """By the name that an address has for them, newest first."""
        found: dict[str, RunFolder] = {}
        for folder in self.chosen or every(self.root):
            name = str(folder.path) if folder.name in found else folder.name
            found[name] = folder
        return found

    def run(self, name: str) -> RunFolder:
        """One that may be looked at: a name in an address never becomes a path."""
        found = self.runs().get(name)
        if found is None:
            raise PenstockError(f"no run '{name}' here")
        return found

    def sections(self, name: str) -> Texts:
        """The page of a run."""
        folder = self.run(name)
        with self._lock:
            seen = self._runs.setdefault(name, Seen())

        def make() -> Texts:
            _refuse_links(folder)
            with garbage_collection_paused():
                found = snapshot(View(folder, quick=True))
            seen.exact = found["headline"].get("exact", True)
            return _texts(found)

        return seen.read(lambda: _mark(folder), make)

    def read_ahead(self) -> None:
        """Begin with the run that will be looked at first: a browser takes a while to open."""
        for name in list(self.runs())[:1]:
            threading.Thread(target=self.sections, args=(name,)).start()

    def listed(self) -> Texts:
        """All runs, a line each."""
        return self._list.read(lambda: None, self._lines_of_all)

    def _lines_of_all(self) -> Texts:
        found = self.runs()
        lines = [self._line(name, folder) for name, folder in list(found.items())[:MOST_LISTED]]
        root = "" if self.chosen else str(Path(self.root).resolve())
        return _texts({"runs": {"lines": lines, "more": len(found) - len(lines), "root": root}})

    def _line(self, name: str, folder: RunFolder) -> Section:
        seen = self._lines.setdefault(folder.path, Seen())
        texts = seen.read(lambda: _mark(folder), lambda: _texts({"line": _brief(folder)}))
        return {"key": name, "name": folder.name, **json.loads(texts["line"])}


def _brief(folder: RunFolder) -> Section:
    try:
        _refuse_links(folder)
        return brief(View(folder, quick=True))
    except UNREADABLE as error:
        return {"status": "unreadable", "problem": redact(f"{type(error).__name__}: {error}")}


def _refuse_links(folder: RunFolder) -> None:
    if link := folder.first_link():
        raise PenstockError(f"{link} is a link, and links in a run folder are not followed")


def _mark(folder: RunFolder) -> object:
    """Equal as long as a run that has ended is untouched; None for one that runs."""
    try:
        if folder.running():
            return None
    except OSError:  # somebody else's lock: whether it runs is not known
        return None
    seen = []
    for path in (folder.path, folder.journal, folder.checkpoints):
        try:
            about = path.stat()
        except OSError:
            continue
        seen.append((path.name, about.st_mtime_ns))
    with contextlib.suppress(OSError):
        seen.append(("told", (folder.journal / "supervisor.events").lstat().st_size))
    return tuple(seen)


def _texts(sections: dict[str, Section]) -> Texts:
    return {name: json.dumps(made, default=str) for name, made in sections.items()}
