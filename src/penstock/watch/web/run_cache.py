"""A cache of the pages of all runs.

Reading a run takes time from the ranks that train it. So a run is read only while somebody looks at
it, at most once a second, and for a small share of the time. All readers get the same answer.
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
from penstock.run.folder import RunFolder, list_runs
from penstock.secret import redact
from penstock.watch.facts.run_view import RunView
from penstock.watch.web.chart_sections import Section
from penstock.watch.web.sections import UNREADABLE, page_sections, run_summary

PAUSE_S = 1.0
READ_SHARE = 0.1  # of the time, for a run that is slow to read
MOST_LISTED = 200
Texts = dict[str, str]  # JSON of each section


@dataclass
class CachedTexts:
    """The cached answer to one request. The lock makes simultaneous requests read once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    texts: Texts = field(default_factory=dict)
    fingerprint: object = None  # of the folder when it was read
    next_s: float = 0.0
    exact: bool = True  # False if `make` gave a quick first answer, to be made again

    def read(self, fingerprint: Callable[[], object], make: Callable[[], Texts]) -> Texts:
        """Return the cached texts; make them again if it is time and the fingerprint changed.

        A fingerprint of None counts as changed.
        """
        with self.lock:
            began = time.monotonic()
            if began >= self.next_s:
                new = fingerprint()
                if new is None or new != self.fingerprint or not self.exact:
                    self.texts, self.fingerprint = make(), new
                spent = time.monotonic() - began
                self.next_s = time.monotonic() + max(PAUSE_S, spent / READ_SHARE)
            return self.texts


@dataclass
class RunCache:
    """The runs that the page shows: those in `chosen`, or all below `root`, and their answers."""

    root: str
    chosen: list[RunFolder] = field(default_factory=list)
    _runs: dict[str, CachedTexts] = field(default_factory=dict)
    _lines: dict[Path, CachedTexts] = field(default_factory=dict)
    _list: CachedTexts = field(default_factory=CachedTexts)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def runs(self) -> dict[str, RunFolder]:
        """Return the runs by their name in an address, newest first."""
        by_name: dict[str, RunFolder] = {}
        for folder in self.chosen or list_runs(self.root):
            name = str(folder.path) if folder.name in by_name else folder.name
            by_name[name] = folder
        return by_name

    def run(self, name: str) -> RunFolder:
        """Return a run by its name in an address. The name is looked up, never used as a path."""
        folder = self.runs().get(name)
        if folder is None:
            raise PenstockError(f"no run '{name}' here")
        return folder

    def sections(self, name: str) -> Texts:
        """Return the page of a run: the JSON of each section."""
        folder = self.run(name)
        with self._lock:
            cached = self._runs.setdefault(name, CachedTexts())

        def make() -> Texts:
            _refuse_links(folder)
            with garbage_collection_paused():
                made = page_sections(RunView(folder, quick=True))
            cached.exact = made["headline"].get("exact", True)
            return _texts(made)

        return cached.read(lambda: _fingerprint(folder), make)

    def read_ahead(self) -> None:
        """Start to read the first run while the browser opens."""
        for name in list(self.runs())[:1]:
            threading.Thread(target=self.sections, args=(name,)).start()

    def run_list(self) -> Texts:
        """Return the list of all runs, a line each."""
        return self._list.read(lambda: None, self._lines_of_all)

    def _lines_of_all(self) -> Texts:
        folders = self.runs()
        lines = [self._line(name, folder) for name, folder in list(folders.items())[:MOST_LISTED]]
        root = "" if self.chosen else str(Path(self.root).resolve())
        return _texts({"runs": {"lines": lines, "more": len(folders) - len(lines), "root": root}})

    def _line(self, name: str, folder: RunFolder) -> Section:
        cached = self._lines.setdefault(folder.path, CachedTexts())
        texts = cached.read(
            lambda: _fingerprint(folder), lambda: _texts({"line": _summary(folder)})
        )
        return {"key": name, "name": folder.name, **json.loads(texts["line"])}


def _summary(folder: RunFolder) -> Section:
    try:
        _refuse_links(folder)
        return run_summary(RunView(folder, quick=True))
    except UNREADABLE as error:
        return {"status": "unreadable", "problem": redact(f"{type(error).__name__}: {error}")}


def _refuse_links(folder: RunFolder) -> None:
    if link := folder.first_link():
        raise PenstockError(f"{link} is a link, and links in a run folder are not followed")


def _fingerprint(folder: RunFolder) -> object:
    """Return a value that changes when the folder of an ended run does; None for a running one."""
    try:
        if folder.running():
            return None
    except OSError:  # another user's lock: it may be running
        return None
    parts = []
    for path in (folder.path, folder.journal, folder.checkpoints):
        try:
            about = path.stat()
        except OSError:
            continue
        parts.append((path.name, about.st_mtime_ns))
    with contextlib.suppress(OSError):
        parts.append(("events", (folder.journal / "supervisor.events").lstat().st_size))
    return tuple(parts)


def _texts(sections: dict[str, Section]) -> Texts:
    return {name: json.dumps(section, default=str) for name, section in sections.items()}
