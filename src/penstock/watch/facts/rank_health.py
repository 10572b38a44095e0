"""The health of each rank: the events of the supervisor and of the ranks, replayed in order."""

from dataclasses import dataclass, field
from typing import Any

from penstock.ledger.journal.read import Event
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
        return RankHealth([UNKNOWN] * int(view.plan.get("ranks") or 0))
    found = RankHealth([STARTING] * invocations[-1].ranks)
    began = invocations[-1].start
    lines = [
        e for e in [*view.supervisor_events, *view.rank_events_of("ready", "end")] if e.t >= began
    ]
    for event in sorted(lines, key=lambda e: e.t):
        _apply(found, event)
    for rank, failures in found.failures.items() if view.running else ():
        if t - failures[-1][0] < RED_S and found.letters[rank] != DEAD:
            found.letters[rank], found.why[rank] = DEAD, failures[-1][1]
    if not view.running:
        found.letters = [DEAD if letter == DEAD else ENDED for letter in found.letters]
        found.why = {rank: why for rank, why in found.why.items() if found.letters[rank] == DEAD}
    return found


def _apply(found: RankHealth, event: Event) -> None:
    ranks = [rank for rank in event.ranks if rank < len(found.letters)]
    match event.kind:
        case "launch":
            for rank, letter in enumerate(found.letters):
                found.letters[rank] = DEAD if letter == DEAD else STARTING
        case "ready":
            _set(found, ranks, FINE)
        case "end":
            bad = event.payload.get("result") in ("oom", "refused")
            _set(found, ranks, DEAD if bad else ENDED, str(event.payload.get("error") or ""))
        case "fault":
            # The other ranks ended because of it and are about to start again.
            _set(found, range(len(found.letters)), STARTING)
            _fail(found, _rank_of(found, event), event)
        case "lost":
            _fail(found, _lost_ranks(found, event), event)
        case "straggler":
            for rank in _rank_of(found, event):
                if found.letters[rank] in (FINE, SLOW):
                    slow = bool(event.payload.get("slow"))
                    words = f"{event.payload.get('factor')} times the others' time"
                    _set(found, [rank], SLOW if slow else FINE, words if slow else "")


def _set(found: RankHealth, ranks: "list[int] | range", letter: str, why: str = "") -> None:
    for rank in ranks:
        found.letters[rank] = letter
        if why:
            found.why[rank] = why
        else:
            found.why.pop(rank, None)


def _fail(found: RankHealth, ranks: list[int], event: Event) -> None:
    why = str(event.payload.get("reason") or "")
    _set(found, ranks, DEAD, why)
    for rank in ranks:
        found.failures.setdefault(rank, []).append((event.t, why))


def _rank_of(found: RankHealth, event: Event) -> list[int]:
    rank = event.whole("rank")
    return [rank] if rank is not None and rank < len(found.letters) else []


def _lost_ranks(found: RankHealth, event: Event) -> list[int]:
    match event.payload.get("ranks"):
        case [int(first), int(last)]:
            return [rank for rank in range(len(found.letters)) if first <= rank <= last]
    return []
