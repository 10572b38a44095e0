"""Repeated reads of a growing journal: only its new bytes are read.

Results are cached in this process, by folder, and never written anywhere. A journal too long to be
read at once gives a first answer from its rollups, and the exact one some reads later.
"""

import gc
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.digest import FileReplaced, StepBlocks, StepDigest
from penstock.ledger.journal.estimate import estimate_blocks
from penstock.ledger.journal.events_file import EventsFollower, FileEvents
from penstock.ledger.journal.read import JournalLine
from penstock.ledger.journal.records import SUPERVISOR, JournalFile, parse_name
from penstock.ledger.journal.records_file import RecordsFollower
from penstock.ledger.journal.steps import LeastExchange

MOST_FOLDERS = 32
AT_ONCE_BYTES = 64 << 20  # of steps: some tenths of a second
QUICK_S = 0.8  # of reading steps, in a look that must not take long


@dataclass
class _AttemptDigests:
    """The digests of an attempt's step files."""

    highest_before: int
    least: LeastExchange = field(default_factory=LeastExchange)
    digests: dict[str, StepDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptSteps:
    """The steps of an attempt's files. From rollups alone, waiting for peers is an estimate."""

    blocks: dict[JournalFile, StepBlocks]
    least: LeastExchange
    exact: bool


class JournalReader:
    """A reader of one journal. Hold its lock while using it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.files: list[JournalFile] = []  # when it was looked at last
        self._named: dict[str, JournalFile | None] = {}
        self._stats: dict[str, os.stat_result] = {}
        self._events: dict[str, EventsFollower] = {}
        self._steps: dict[int, _AttemptDigests] = {}
        self._grown: dict[str, RecordsFollower] = {}
        self._sorted: list[JournalLine] = []
        self._sorted_of: dict[str, int] = {}  # how many of each file are in it

    def refresh(self) -> list[JournalFile]:
        """List the ranks' files that exist now, by attempt, then rank."""
        try:
            with os.scandir(self.folder) as entries:
                found = [one for one in entries if one.is_file(follow_symlinks=False)]
                self._stats = {one.name: one.stat(follow_symlinks=False) for one in found}
        except FileNotFoundError:
            self._stats = {}
        for name in self._stats.keys() - self._named.keys():
            self._named[name] = parse_name(self.folder / name)
        named = [file for name in self._stats if (file := self._named[name])]
        self.files = sorted(named, key=lambda f: (f.attempt, f.ranks.start, f.ranks.stop, f.kind))
        return self.files

    def supervisor_events(self) -> list[JournalLine]:
        """Return the events of the supervisor."""
        return self._file_events(SUPERVISOR).events if SUPERVISOR in self._stats else []

    def events(self) -> list[JournalLine]:
        """Return the events of all ranks, by time."""
        ranks = [name for name in self._events if name in self._stats and name != SUPERVISOR]
        by_file = {name: self._events[name].events.events for name in sorted(ranks)}
        if any(len(by_file.get(name, [])) < count for name, count in self._sorted_of.items()):
            self._sorted, self._sorted_of = [], {}  # a file is another one now
        new = [
            e for name, all_of in by_file.items() for e in all_of[self._sorted_of.get(name, 0) :]
        ]
        if new:
            # A new list: somebody may hold the old one. It is sorted but for its end.
            self._sorted = sorted(self._sorted + new, key=lambda line: line.t)
            self._sorted_of = {name: len(all_of) for name, all_of in by_file.items()}
        return self._sorted

    def records(self, file: JournalFile) -> np.ndarray:
        """Return all records of a file that has fixed-width records."""
        name = file.path.name
        if name not in self._grown:
            self._grown[name] = RecordsFollower(self.folder / name, file.kind)
        return self._grown[name].read(self._stats[name])

    def events_of(self, file: JournalFile) -> FileEvents:
        """Return the events of one file."""
        return self._file_events(file.path.name)

    def _file_events(self, name: str) -> FileEvents:
        if name not in self._events:
            self._events[name] = EventsFollower(self.folder / name)
        return self._events[name].read(self._stats[name])

    def steps(
        self, attempt: int, files: list[JournalFile], before: int, quick: bool
    ) -> AttemptSteps:
        """Return the steps of these files; `before` is the highest step of earlier attempts."""
        made = self._steps.get(attempt)
        if made is None or made.highest_before != before:
            made = self._steps[attempt] = _AttemptDigests(before)
        # The very first answer is not kept waiting by steps.
        quick_s = QUICK_S if made.digests else 0.0
        until = time.monotonic() + quick_s if quick else float("inf")
        try:
            exact = self._read(made, files, until)
        except FileReplaced:
            del self._steps[attempt]
            return self.steps(attempt, files, before, quick)
        if exact:
            found = [made.digests[file.path.name].blocks(made.least) for file in files]
        else:
            found = estimate_blocks([file.path for file in files], before)
        return AttemptSteps(dict(zip(files, found, strict=True)), made.least, exact)

    def _read(self, made: _AttemptDigests, files: list[JournalFile], until: float) -> bool:
        """Read what is new, as far as time allows; return whether that is everything."""
        for file in files:
            if file.path.name not in made.digests:
                made.digests[file.path.name] = StepDigest(file, made.highest_before)
        pairs = [(made.digests[f.path.name], self._stats[f.path.name]) for f in files]
        if sum(digest.tail.unread(stat) for digest, stat in pairs) <= AT_ONCE_BYTES:
            until = float("inf")
        for digest, stat in pairs:
            if time.monotonic() >= until:
                return False
            digest.read(stat, made.least)
        return True


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: hundreds of thousands of live lines make it slow."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


_readers: OrderedDict[Path, JournalReader] = OrderedDict()
_lock = threading.Lock()


def reader_of(folder: Path | str) -> JournalReader:
    """Return the reader that has read this journal before, or a new one."""
    where = Path(folder).absolute()
    with _lock:
        reader = _readers.setdefault(where, JournalReader(where))
        _readers.move_to_end(where)
        if len(_readers) > MOST_FOLDERS:
            _readers.popitem(last=False)
        return reader
