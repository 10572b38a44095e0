"""How an attempt ended: by what its ranks wrote before, and by how it looked from outside."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.guard.format.published import published_folders, step_of
from penstock.ledger.journal.read import Event, read_events, read_steps
from penstock.ledger.journal.records import file_name, journal_files
from penstock.policy import restart
from penstock.run.folder import RunFolder

STACK_LINES = 12  # of the last stack in the message of a run that gives up


def has_trained(folder: RunFolder) -> bool:
    """Return whether a step of the run is on record, in any attempt."""
    return any(len(read_steps(file.path)) for file in journal_files(folder.journal, "steps"))


@dataclass(frozen=True)
class Fault:
    """How an attempt ended as seen from outside: who died first, when, and why if not by dying."""

    died: list[int]
    t: float
    codes: dict[int, int] = field(default_factory=dict)  # exit codes of those
    words: str = ""
    since: float | None = None  # when work stopped, if that was seen
    asked: bool = False  # the run was to stop, and had nothing to save: no fault at all

    def how_died(self, rank: int) -> str:
        """A rank that left no record, in words."""
        return how_died(self.codes.get(rank, 0))


def how_died(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code} and no word"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"the process was killed by {signal.Signals(-code).name}{hint}"


@dataclass(frozen=True)
class Ending:
    """The records of one attempt."""

    folder: RunFolder
    attempt: int
    ranks: int

    @property
    def logs(self) -> Path:
        return self.folder.logs / f"attempt-{self.attempt}"

    def events(self, rank: int) -> list[Event]:
        return read_events(self.folder.journal / self._name(rank, "events"))

    def last_word(self, rank: int) -> dict[str, object]:
        """Empty when it left none."""
        ends = [e.payload for e in self.events(rank) if e.kind == "end"]
        return ends[-1] if ends else {}

    def by_failure(self, ranks: Sequence[int]) -> list[int]:
        """Return the ranks in the order in which they wrote that they failed.

        Several may be found dead at once. A rank writes its error before it exits, and its peers
        notice only that exit.
        """

        def wrote_t(rank: int) -> float:
            ends = [e.t for e in self.events(rank) if e.kind == "end"]
            return ends[-1] if ends else math.inf

        return sorted(ranks, key=wrote_t)

    def ended(self, done: Sequence[int] = ()) -> restart.AttemptEnd:
        """Where replicas go on without each other, those count that came to the end: `done`."""
        words = [self.last_word(rank) for rank in done or range(self.ranks)]
        results = tuple(str(word["result"]) if word else None for word in words)
        return restart.AttemptEnd(results, self._saved_step())

    def _saved_step(self) -> int:
        """Only what is saved is progress: an attempt that gets a step further and dies before its
        save would otherwise be tried for ever. Wherever it was saved, later attempts begin there.
        """
        try:
            saved = published_folders(self.folder.checkpoints)
        except OSError:  # no progress can be seen there
            saved = []
        resumed = [e.whole("step") or 0 for e in self.events(0) if e.kind == "resumed"]
        return max([step_of(saved[0]) if saved else 0, *resumed])

    def steps(self, rank: int) -> int:
        """How many a rank has on record."""
        return len(read_steps(self.folder.journal / self._name(rank, "steps")))

    def stopped_since(self, t: float, long_s: float) -> float:
        """When work stopped: at the fault, or before when the ranks hung for `long_s` or more."""
        worked: list[float] = []
        for rank in range(self.ranks):
            steps = read_steps(self.folder.journal / self._name(rank, "steps"))[-1:]
            worked += (steps["start"] + steps["total"]).tolist()
            worked += [e.end or e.t for e in self.events(rank) if e.kind != "end"]
        last = max(worked, default=t)  # a rank may die before it has written anything
        return last if t - last >= long_s else t

    def last_stack(self, rank: int) -> str:
        """The end of what a rank printed, where that is a stack."""
        try:
            lines = (self.logs / f"rank-{rank}.err").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        begins = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        return "\n".join(lines[begins[-1] :][-STACK_LINES:]) if begins else ""

    def _name(self, rank: int, kind: str) -> str:
        return file_name(self.attempt, range(rank, rank + 1), kind)
