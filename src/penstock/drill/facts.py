"""What a scratch run left behind, read once for the judge."""

from dataclasses import dataclass

from penstock.drill import audit
from penstock.drill.clock import Life
from penstock.drill.lives import lives
from penstock.drill.struck import Struck
from penstock.ledger.journal.read import Event, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView


@dataclass(frozen=True)
class Facts:
    status: str
    weights_hash: str | None
    losses: dict[int, float]  # by step, of the curve that counts
    samples: audit.Samples
    events: list[Event]  # of supervisor and ranks, by time
    struck: list[Struck]
    missed: list[str]  # blows that did not fall
    lives: list[Life]
    ledger: dict[str, float]
    ranks: int
    wall_s: float

    def faults(self) -> list[Event]:
        return [event for event in self.events if event.kind == "fault"]


def read(folder: RunFolder, struck: list[Struck], missed: list[str], batch: int) -> Facts:
    view = RunView(folder)
    supervised = read_events(folder.journal / SUPERVISOR)
    final = audit.counting(audit.read(folder.audit))
    if view.run.guard.mode == "live":
        final = audit.by_vote(final, batch)
    account = view.account
    return Facts(
        status=view.status,
        weights_hash=view.weights_hash,
        losses={int(point["step"]): float(point["loss"]) for point in view.curve},
        samples=audit.check(final, view.steps, batch),
        events=sorted([*supervised, *view.rank_events], key=lambda event: event.t),
        struck=struck,
        missed=missed,
        lives=lives(folder.audit, supervised, struck, account.ranks),
        ledger={str(cause): seconds for cause, seconds in account.ledger.seconds.items()},
        ranks=account.ranks,
        wall_s=account.wall_s,
    )
