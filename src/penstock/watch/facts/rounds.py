"""Rounds of replicas that take local steps: how many, what they send, and who is behind."""

from dataclasses import asdict, dataclass
from typing import Any

from penstock.ledger.journal.events import RoundEnded, SiteRound
from penstock.ledger.journal.read import LineOf
from penstock.ledger.journal.values import whole
from penstock.meter.clock import now
from penstock.policy.rounds import Rounds
from penstock.style import format_count, format_duration, plural
from penstock.watch.facts.run_view import RunView


@dataclass(frozen=True)
class RoundMember:
    """A replica or a site, as the journal tells of its rounds."""

    name: str
    step: int  # after which it last agreed
    rounds: int  # that it has ended, each once
    behind: int  # rounds that another has ended and it has not
    # By its first rank, those of rounds done again too; None of another site, whose run knows it.
    sent_bytes: int | None
    since_s: float | None  # its last round ended so long ago; None when the run has ended


@dataclass(frozen=True)
class RoundFacts:
    """The rounds of a run so far."""

    local_steps: int
    rounds: int  # of the one that is farthest
    planned: int  # of the whole run
    sent_bytes: int  # by all; by this site
    round_bytes: float | None  # that one sent in a round, on average; None before the first
    members: tuple[RoundMember, ...]

    @property
    def lag(self) -> int:
        """Return by how many rounds the last is behind the first."""
        return max((one.behind for one in self.members), default=0)

    def words(self) -> str:
        """Say in one line where the rounds are, what they send and who is behind."""
        done = f"{self.rounds} of {plural(self.planned, 'round')} of {self.local_steps} steps"
        if self.round_bytes is None:
            return done
        sent = f"{format_count(self.round_bytes)}B a round from each of {len(self.members)}"
        late = [f"{one.name} is {plural(one.behind, 'round')} behind" for one in self.members
                if one.behind]  # fmt: skip
        return "; ".join([f"{done}, {sent}, {format_count(self.sent_bytes)}B in all", *late])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "members": [asdict(one) for one in self.members], "lag": self.lag}

    def rows(self) -> list[list[str]]:
        """Return a line for each member, for a table."""
        return [
            [
                one.name,
                f"{one.rounds:,}",
                f"{one.step:,}",
                plural(one.behind, "round") if one.behind else "–",
                "–" if one.sent_bytes is None else f"{format_count(one.sent_bytes)}B",
                "–" if one.since_s is None else f"{format_duration(one.since_s)} ago",
            ]
            for one in self.members
        ]


HEADINGS = ("", "rounds", "agreed after step", "behind", "sent", "last round")


def round_facts(view: RunView) -> RoundFacts | None:
    """Return the rounds of a run; None of one whose replicas agree in every step."""
    run = view.run_or_none
    if run is None or not run.train.sync.apart:
        return None
    local_steps = run.train.sync.inner_steps
    if run.sites:
        return _of_sites(view, run.sites.name, local_steps)
    ended: dict[int, list[LineOf[RoundEnded]]] = {}
    for line in view.rank_events_of(RoundEnded):
        if line.ranks:
            ended.setdefault(line.ranks.start, []).append(line)
    calendar = Rounds(max(1, view.steps or 1), local_steps)
    farthest = max((_step(line) for lines in ended.values() for line in lines), default=0)
    clock = now() if view.running else None
    members = tuple(
        _member(f"replica {place}", lines, farthest, local_steps, clock)
        for place, (_, lines) in enumerate(sorted(ended.items()))
    )
    sent = sum(one.sent_bytes or 0 for one in members)
    count = sum(map(len, ended.values()))
    return RoundFacts(
        local_steps=local_steps,
        rounds=_number(farthest, local_steps),
        planned=calendar.count,
        sent_bytes=sent,
        round_bytes=sent / count if count else None,
        members=members,
    )


def _of_sites(view: RunView, own: str, local_steps: int) -> RoundFacts:
    """Return the rounds of sites as one of them has merged them: the last merge of each counts."""
    merged: dict[int, LineOf[SiteRound]] = {}
    sent = 0
    for line in view.rank_events_of(SiteRound):
        sent += whole(line.event.sent_bytes) or 0
        if (number := whole(line.event.number)) and isinstance(line.event.sites, dict):
            merged[number] = line
    work = {number: line for number, line in merged.items() if line.event.sites}
    newest, clock = max(merged, default=0), now() if view.running else None
    members = []
    for site in sorted({site for line in work.values() for site in line.event.sites}):
        numbers = [number for number, line in work.items() if site in line.event.sites]
        since_s = None if clock is None else max(0.0, clock - work[max(numbers)].t)
        members.append(
            RoundMember(
                name=f"site {site}",
                step=(max(numbers) - 1) * local_steps,
                rounds=len(numbers),
                behind=newest - max(numbers),
                sent_bytes=sent if site == own else None,
                since_s=since_s,
            )
        )
    return RoundFacts(
        local_steps=local_steps,
        rounds=len(work),
        planned=Rounds(max(1, view.steps or 1), local_steps).count,
        sent_bytes=sent,
        round_bytes=sent / len(work) if work else None,
        members=tuple(members),
    )


def _member(
    name: str,
    lines: list[LineOf[RoundEnded]],
    farthest: int,
    local_steps: int,
    clock: float | None,
) -> RoundMember:
    last = max(map(_step, lines))
    return RoundMember(
        name=name,
        step=last,
        rounds=len(set(map(_step, lines))),
        behind=_number(farthest, local_steps) - _number(last, local_steps),
        sent_bytes=sum(whole(line.event.sent_bytes) or 0 for line in lines),
        since_s=None if clock is None else max(0.0, clock - max(line.t for line in lines)),
    )


def _step(line: LineOf[RoundEnded]) -> int:
    return whole(line.event.step) or 0


def _number(step: int, local_steps: int) -> int:
    """Return the number of the round that ends with a step; the last one may be short."""
    return -(-step // local_steps)
