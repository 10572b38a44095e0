"""The health of each rank: the events of the supervisor and of the ranks, replayed in order."""

from dataclasses import dataclass, field
from typing import Any

from penstock.ledger.journal.events import (
    AttemptFailed,
    AttemptLaunched,
    RankEnded,
    RankReady,
    ReplicaGone,
    RunResized,
    StragglerChanged,
)
from penstock.ledger.journal.read import JournalLine
from penstock.ledger.journal.values import whole
from penstock.meter.clock import now
from penstock.watch.facts.run_view import RunView

# One letter each, so that a thousand ranks are a thousand bytes.
FINE, SLOW, DEAD, STARTING, ENDED, UNKNOWN = "f", "s", "d", "u", "e", "n"
WORDS = {
    FINE: "fine",
    SLOW: "slow",
    DEAD: "down",
    STARTING: "starting",
    ENDED: "ended",
    UNKNOWN: "not started",
}
# A rank stays red so long after it failed: it can be back before a page is drawn again.
RED_S = 12.0


@dataclass
class RankHealth:
    """The state of each rank as a letter, the reason for some, and past failures."""

    letters: list[str]
    why: dict[int, str] = field(default_factory=dict)
    failures: dict[int, list[tuple[float, str]]] = field(default_factory=dict)  # time, reason

    def to_json(self) -> dict[str, Any]:
        counts = {WORDS[letter]: self.letters.count(letter) for letter in WORDS}
        return {
            "letters": "".join(self.letters),
            "why": {str(rank): words for rank, words in sorted(self.why.items())},
            "counts": {word: count for word, count in counts.items() if count},
            "fell": {str(rank): len(times) for rank, times in sorted(self.failures.items())},
        }


def rank_health(view: RunView, t: float | None = None) -> RankHealth:
    """Return the health of the ranks of the last invocation, at `t` or now.

    A rank that failed stays red until it is ready again, and `RED_S` longer.
    """
    t = now() if t is None else t
    invocations = view.account.invocations
    if not invocations:
        return RankHealth([UNKNOWN] * int(view.launch.ranks))
    health = RankHealth([STARTING] * invocations[-1].ranks)
    began = invocations[-1].start
    ready, ended = view.rank_events_of(RankReady), view.rank_events_of(RankEnded)
    by_ranks: list[JournalLine] = sorted([*ready, *ended], key=lambda line: line.t)
    lines = [line for line in [*view.supervisor_events, *by_ranks] if line.t >= began]
    for line in sorted(lines, key=lambda line: line.t):
        _apply(health, line)
    for rank, failures in health.failures.items() if view.running else ():
        if t - failures[-1][0] < RED_S and health.letters[rank] != DEAD:
            health.letters[rank], health.why[rank] = DEAD, failures[-1][1]
    if not view.running:
        health.letters = [DEAD if letter == DEAD else ENDED for letter in health.letters]
        health.why = {rank: why for rank, why in health.why.items() if health.letters[rank] == DEAD}
    return health


def _apply(health: RankHealth, line: JournalLine) -> None:
    ranks = [rank for rank in line.ranks if rank < len(health.letters)]
    match line.event:
        case AttemptLaunched():
            for rank, letter in enumerate(health.letters):
                health.letters[rank] = DEAD if letter == DEAD else STARTING
        case RunResized() as size:  # the others wait for an hour with more power
            _set(health, range(max(0, size.ranks), len(health.letters)), UNKNOWN, str(size.why))
        case RankReady():
            _set(health, ranks, FINE)
        case RankEnded() as end:
            bad = end.result in ("oom", "refused")
            _set(health, ranks, DEAD if bad else ENDED, str(end.error or ""))
        case AttemptFailed() as fault:
            # The other ranks ended because of it and are about to start again.
            _set(health, range(len(health.letters)), STARTING)
            _fail(health, _known_rank(health, fault.rank), line.t, fault.reason)
        case ReplicaGone() as lost:
            _fail(health, _lost_ranks(health, lost), line.t, lost.reason)
        case StragglerChanged() as change:
            for rank in _known_rank(health, change.rank):
                if health.letters[rank] in (FINE, SLOW):
                    slow = change.slow
                    words = f"{change.factor} times the others' time"
                    _set(health, [rank], SLOW if slow else FINE, words if slow else "")


def _set(health: RankHealth, ranks: "list[int] | range", letter: str, why: str = "") -> None:
    for rank in ranks:
        health.letters[rank] = letter
        if why:
            health.why[rank] = why
        else:
            health.why.pop(rank, None)


def _fail(health: RankHealth, ranks: list[int], t: float, reason: str) -> None:
    why = str(reason or "")
    _set(health, ranks, DEAD, why)
    for rank in ranks:
        health.failures.setdefault(rank, []).append((t, why))


def _known_rank(health: RankHealth, value: object) -> list[int]:
    rank = whole(value)
    return [rank] if rank is not None and rank < len(health.letters) else []


def _lost_ranks(health: RankHealth, lost: ReplicaGone) -> list[int]:
    match lost.ranks:
        case [int(first), int(last)]:
            return [rank for rank in range(len(health.letters)) if first <= rank <= last]
    return []
