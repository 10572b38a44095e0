"""The facts of a scratch run that the judge needs, read once."""

from dataclasses import dataclass

from penstock.drill import audit
from penstock.drill.attempts import read_attempts
from penstock.drill.clock import AttemptBeats
from penstock.drill.faults import InjectedFault
from penstock.ledger.journal.events import AttemptFailed
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView


@dataclass(frozen=True)
class DrillFacts:
    """A finished scratch run: its result, journal, samples and injected faults."""

    status: str
    weights_hash: str | None
    losses: dict[int, float]  # by step, of the curve that counts
    samples: audit.SampleCounts
    events: list[JournalLine]  # of supervisor and ranks, by time
    injected: list[InjectedFault]
    missed: list[str]  # injections that did not happen
    attempts: list[AttemptBeats]
    ledger: dict[str, float]
    ranks: int
    wall_s: float

    def faults(self) -> list[LineOf[AttemptFailed]]:
        return lines_of(self.events, AttemptFailed)


def read_facts(
    folder: RunFolder, injected: list[InjectedFault], missed: list[str], batch: int
) -> DrillFacts:
    """Read what a finished scratch run left behind."""
    view = RunView(folder)
    supervised = read_events(folder.journal / SUPERVISOR)
    final = audit.final_uses(audit.read(folder.audit))
    if view.run.guard.mode == "live":
        final = audit.add_voted_parts(final, batch)
    account = view.account
    return DrillFacts(
        status=view.status,
        weights_hash=view.weights_hash,
        losses={int(point["step"]): float(point["loss"]) for point in view.curve},
        samples=audit.count_samples(final, view.steps, batch),
        events=sorted([*supervised, *view.rank_events], key=lambda event: event.t),
        injected=injected,
        missed=missed,
        attempts=read_attempts(folder.audit, supervised, injected, account.ranks),
        ledger={str(cause): seconds for cause, seconds in account.ledger.seconds.items()},
        ranks=account.ranks,
        wall_s=account.wall_s,
    )
