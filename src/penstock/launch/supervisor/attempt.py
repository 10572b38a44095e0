"""How an attempt ended: what its ranks wrote down, and what the supervisor saw from outside."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.guard.format.published import published_folders, step_of
from penstock.ledger.journal.events import ABSENT, CheckpointLoaded, RankEnded
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of, read_events, read_steps
from penstock.ledger.journal.records import file_name, journal_files
from penstock.ledger.journal.values import whole
from penstock.policy import restart
from penstock.run.folder import RunFolder

STACK_LINES = 12  # of the last stack, in the message of a run that gives up


@dataclass(frozen=True)
class ObservedEnd:
    """The end of an attempt as the supervisor saw it: who died first, when, and why."""

    died: list[int]  # ranks
    t: float
    exit_codes: dict[int, int] = field(default_factory=dict)  # of the ranks that died
    reason: str = ""  # where it is more than a death
    since: float | None = None  # when work stopped, if that was seen
    requested: bool = False  # the run was asked to stop with nothing to save: not a fault

    def describe_exit(self, rank: int) -> str:
        """Say how a rank ended that left no record."""
        return describe_exit(self.exit_codes.get(rank, 0))


def describe_exit(code: int) -> str:
    """Say how a process ended, from its exit code."""
    if code >= 0:
        return f"the process ended with exit code {code} and no word"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"the process was killed by {signal.Signals(-code).name}{hint}"


def has_trained(folder: RunFolder) -> bool:
    """Return whether a step of the run is on record, in any attempt."""
    return any(len(read_steps(file.path)) for file in journal_files(folder.journal, "steps"))


@dataclass(frozen=True)
class AttemptRecords:
    """The journal files and logs that the ranks of one attempt wrote."""

    folder: RunFolder
    attempt: int
    ranks: int

    @property
    def logs(self) -> Path:
        return self.folder.logs / f"attempt-{self.attempt}"

    def events(self, rank: int) -> list[JournalLine]:
        return read_events(self.folder.journal / self._name(rank, "events"))

    def end_record(self, rank: int) -> RankEnded | None:
        """Return how a rank ended, by its own word; None where it did not write that."""
        line = self._end_line(rank)
        return line.event if line and line.event.result is not ABSENT else None

    def _end_line(self, rank: int) -> LineOf[RankEnded] | None:
        ends = lines_of(self.events(rank), RankEnded)
        return ends[-1] if ends else None

    def in_order_of_failure(self) -> list[int]:
        """Return the ranks that wrote that they failed, the first one first.

        Not only those that the supervisor found dead: a rank writes its error before it exits, and
        a peer that notices the exit may be seen to end before it.
        """
        wrote_t: dict[int, float] = {}
        for rank in range(self.ranks):
            end = self._end_line(rank)
            if end and end.event.result not in restart.WELL:
                wrote_t[rank] = end.t
        return sorted(wrote_t, key=wrote_t.__getitem__)

    def ended(self, finished: Sequence[int] = ()) -> restart.AttemptEnd:
        """Return how the ranks ended and what they saved.

        In live mode only `finished` counts: the ranks of replicas that came to the end.
        """
        ends = [self.end_record(rank) for rank in finished or range(self.ranks)]
        results = tuple(str(end.result) if end else None for end in ends)
        return restart.AttemptEnd(results, self._saved_step())

    def _saved_step(self) -> int:
        """Return the newest saved step, in whatever place it was saved.

        Only a save is progress: an attempt that gets a step further and dies before its save would
        otherwise be tried for ever.
        """
        try:
            saved = published_folders(self.folder.checkpoints)
        except OSError:  # the disk does not answer, so no progress can be seen there
            saved = []
        loaded = lines_of(self.events(0), CheckpointLoaded)
        resumed = [whole(line.event.step) or 0 for line in loaded]
        return max([step_of(saved[0]) if saved else 0, *resumed])

    def step_count(self, rank: int) -> int:
        """Return how many steps a rank has on record."""
        return len(read_steps(self.folder.journal / self._name(rank, "steps")))

    def work_stopped_at(self, t: float, long_s: float) -> float:
        """Return when work stopped: at the fault at `t`, or earlier if the ranks had been silent
        for `long_s` or more."""
        worked: list[float] = []
        for rank in range(self.ranks):
            steps = read_steps(self.folder.journal / self._name(rank, "steps"))[-1:]
            worked += (steps["start"] + steps["total"]).tolist()
            for line in self.events(rank):
                if not isinstance(line.event, RankEnded):
                    worked.append(line.end or line.t)
        last = max(worked, default=t)  # a rank may die before it has written anything
        return last if t - last >= long_s else t

    def last_stack(self, rank: int) -> str:
        """Return the last traceback that a rank printed; "" where it printed none."""
        try:
            lines = (self.logs / f"rank-{rank}.err").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        begins = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        return "\n".join(lines[begins[-1] :][-STACK_LINES:]) if begins else ""

    def _name(self, rank: int, kind: str) -> str:
        return file_name(self.attempt, range(rank, rank + 1), kind)
