"""Rounds of sites that meet only in a bucket: which publications make one, who trains on what.

The samples of a run are cut into leases, each a pure function of its number. A round is a numbered
record that one site writes: it names the publications that all sites merge, in their order. What
follows from it (who holds which lease next, whose lease is given out again) is computed here, from
the records alone, so all sites compute the same. No clocks are compared: lateness is counted in
rounds, and a site waits by its own clock. docs/design/sites.md tells the whole protocol.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Members = tuple["Publication", ...]
SNAPSHOTS = 2  # that stay: a site that joins may still be reading the one before the newest


@dataclass(frozen=True)
class LeaseCut:
    """The leases of a run: part p of K of every batch, for the steps of a block."""

    steps: int  # of the whole run
    length: int  # steps of a block
    parts: int  # of a batch: the sites that the run file counts with

    @property
    def total(self) -> int:
        return -(-self.steps // self.length) * self.parts

    def part(self, lease: int) -> int:
        """Return which part of its batches a lease is."""
        return lease % self.parts

    def batches(self, lease: int) -> range:
        """Return the batches that a lease has a part of, numbered as steps: from 1."""
        first = lease // self.parts * self.length + 1
        return range(first, min(first + self.length - 1, self.steps) + 1)


@dataclass(frozen=True)
class Publication:
    """What a round takes in of a site: its work on a lease, or that it is ready for one."""

    site: str
    base: int  # round in which the lease was granted; of a site without one: the last round
    lease: int | None
    content: str = ""  # hash of the object
    # What a restart of the site needs: this round, and all after it. None: it does not know.
    needs: int | None = None
    snapshot: int | None = None  # the newest that this site has put into the bucket


@dataclass(frozen=True)
class SiteLease:
    """A lease that a site holds."""

    number: int
    base: int  # round in which it was granted
    age_from: int  # rounds that counted when it was granted


@dataclass(frozen=True)
class SitesRules:
    """What the run file says about rounds."""

    cut: LeaseCut
    needed: int  # publications that a round needs
    late: int  # rounds by which a publication may be late
    grace_s: float


@dataclass(frozen=True)
class SitesState:
    """What follows from the rounds up to one. The first state has number 0, before any round."""

    number: int = 0
    counted: int = 0  # rounds that make leases older
    done: int = 0  # leases whose work was merged
    next: int = 0  # the first lease that was never granted
    free: tuple[int, ...] = ()  # leases that were taken back
    held: dict[str, SiteLease] = field(default_factory=dict)
    present: frozenset[str] = frozenset()  # sites of the last round: the next one waits for them
    # How much of the mean of the last round counts: leases that others still train on will come on
    # top of it, and would otherwise make the step too long.
    share: float = 0.0
    needs: dict[str, int] = field(default_factory=dict)  # by site, as it said last
    snapshots: tuple[int, ...] = ()  # the newest, by number

    @property
    def floor(self) -> int:
        """Return the first round whose record is still needed: by a restart of any site that takes
        part, or by a site that joins. A site that was away for too long joins anew.
        """
        if len(self.snapshots) < SNAPSHOTS:
            return 0
        taking_part = self.present | self.held.keys()
        return min(self.snapshots[0], *(self.needs.get(site, 0) for site in taking_part))

    def kept_from(self, at_floor: "SitesState") -> int:
        """Return the first round of which anything is kept. `at_floor` is the state after the round
        `floor`: work on the leases that were held then is merged after it, and still read.
        """
        return min([self.floor, *(own.base for own in at_floor.held.values())])

    def to_json(self) -> dict[str, Any]:
        """Return what the record of a round says about what follows from it."""
        held = {site: [own.number, own.base, own.age_from] for site, own in self.held.items()}
        lists = {"free": list(self.free), "snapshots": list(self.snapshots)}
        return vars(self) | lists | {"held": held, "present": sorted(self.present)}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "SitesState":
        """Return the state that `to_json` has described."""
        held = {site: SiteLease(*own) for site, own in saved["held"].items()}
        free, snapshots = tuple(saved["free"]), tuple(saved["snapshots"])
        present = frozenset(saved["present"])
        own = {"held": held, "free": free, "present": present, "snapshots": snapshots}
        return cls(**(saved | own))

    def refusal(self, found: Publication) -> str:
        """Return why the next round does not take a publication in; empty if it does."""
        own = self.held.get(found.site)
        if found.base > self.number:
            return f"names round {found.base}, and there were {self.number}"
        if max(found.needs or 0, found.snapshot or 0) > self.number:
            return f"speaks of rounds after {self.number}, which there are none of"
        if found.lease is None:
            if own:
                return f"says that it has no lease, and holds {own.number}"
            return "" if found.base == self.number else "is of a round that is over"
        if own and (own.number, own.base) == (found.lease, found.base):
            return ""
        return f"is work of round {found.base} on lease {found.lease}, merged or given out again"

    def candidates(self, found: Iterable[Publication]) -> Members:
        """Return what the next round may take in, in the order in which it is merged."""
        taken = {one.site: one for one in found if not self.refusal(one)}
        return tuple(taken[site] for site in sorted(taken))

    def after(self, members: Members, rules: SitesRules) -> "SitesState":
        """Return the state after the next round. Raises ValueError if it cannot be."""
        if tuple(sorted(members, key=lambda one: one.site)) != members:
            raise ValueError("its members are out of order")
        if len({one.site for one in members}) < len(members) or not members:
            raise ValueError("it has no members, or one twice")
        for one in members:
            if why := self.refusal(one):
                raise ValueError(f"what site {one.site} published {why}")
        sites = [one.site for one in members]
        work = [one for one in members if one.lease is not None]
        held = {site: own for site, own in self.held.items() if site not in sites}
        counted = self.counted + (1 if work or not self._grants(rules) else 0)
        lost = {site for site, own in held.items() if counted > own.age_from + rules.late}
        free = sorted([*self.free, *(held.pop(site).number for site in lost)])
        share = len(work) / (len(work) + len(held)) if work else 0.0
        following, number = self.next, self.number + 1
        for site in sites:
            if free:
                held[site] = SiteLease(free.pop(0), number, counted)
            elif following < rules.cut.total:
                held[site] = SiteLease(following, number, counted)
                following += 1
        said = {one.site: one.needs for one in members if one.needs is not None}
        needs = {site: n for site, n in (self.needs | said).items() if site in {*held, *sites}}
        put = {one.snapshot for one in members if one.snapshot is not None}
        return SitesState(
            number,
            counted,
            self.done + len(work),
            following,
            tuple(free),
            held,
            frozenset(sites),
            share,
            needs,
            tuple(sorted({*self.snapshots, *put})[-SNAPSHOTS:]),
        )

    def finished(self, rules: SitesRules) -> bool:
        return self.done == rules.cut.total

    def _grants(self, rules: SitesRules) -> bool:
        return bool(self.free) or self.next < rules.cut.total

    def closes(self, found: Members, waited_s: float, rules: SitesRules) -> bool:
        """Return whether a round of these candidates may be written now.

        `waited_s` is how long there has been a quorum of them, by the observer's own clock.
        """
        if len(found) < rules.needed:
            return False
        if waited_s >= rules.grace_s:
            return True
        if not any(one.lease is not None for one in found) and not self._grants(rules):
            return False  # it only makes leases older, so it must not be quick
        sites = {one.site for one in found}
        return self.present <= sites and (self.number > 0 or len(sites) >= rules.cut.parts)


@dataclass(frozen=True)
class SitePosition:
    """Where a site is: after which round, on which lease, and whether it is through with it."""

    at: int = 0
    lease: SiteLease | None = None
    trained: bool = False


@dataclass(frozen=True)
class SiteAction:
    """What a site does next.

    train: take the steps of the lease. meet: publish, then write the next round or wait for it.
    move: merge all rounds up to `to` and begin at the weights that follow. end: the run is over.
    """

    kind: Literal["train", "meet", "move", "end"]
    to: int = 0
    lease: SiteLease | None = None  # that the site holds after a move
    dropped: bool = False  # its work was late by too much, and is lost


def next_action(
    site: str, here: SitePosition, states: Sequence[SitesState], rules: SitesRules
) -> SiteAction:
    """Return what a site does next. `states` are those after each round from `here.at` or before,
    in order.
    """
    newest = states[-1]
    if here.lease is None:
        if here.at < newest.number:
            return SiteAction("move", newest.number, newest.held.get(site))
        return SiteAction("end" if newest.finished(rules) else "meet")
    merged, lost = _fate(site, here, states)
    if lost:
        return SiteAction("move", newest.number, newest.held.get(site), dropped=True)
    if not here.trained:
        return SiteAction("train")  # also what was merged already: a restarted site does it again
    if merged is None:
        return SiteAction("meet")
    own = states[merged - states[0].number].held.get(site)
    return SiteAction("move", merged, own)


def _fate(site: str, here: SitePosition, states: Sequence[SitesState]) -> tuple[int | None, bool]:
    """Return the round that merged a site's lease, if any, and whether the lease was taken back."""
    assert here.lease is not None
    for state in states[max(0, here.at + 1 - states[0].number) :]:
        own = state.held.get(site)
        if own and (own.number, own.base) == (here.lease.number, here.lease.base):
            continue
        return (state.number, False) if site in state.present else (None, True)
    return None, False


def publication(site: str, here: SitePosition) -> Publication:
    """Return what a site says when it meets the others."""
    if here.lease is None:
        return Publication(site, here.at, None)
    return Publication(site, here.lease.base, here.lease.number)


def moved(here: SitePosition, action: SiteAction) -> SitePosition:
    """Return the position after a move."""
    return replace(here, at=action.to, lease=action.lease, trained=False)
