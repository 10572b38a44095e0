"""Sites over a bucket, in any order of events: no sample twice, equal anchors, nothing lost."""

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy import sites as policy
from penstock.policy.sites import (
    LeaseCut,
    Members,
    Publication,
    SitePosition,
    SitesRules,
    SitesState,
)

CUT = LeaseCut(steps=11, length=4, parts=2)  # three blocks, the last of three steps


def rules(needed: int = 1, late: int = 2, cut: LeaseCut = CUT) -> SitesRules:
    return SitesRules(cut, needed, late, grace_s=10.0)


def ready(site: str, base: int) -> Publication:
    return Publication(site, base, None)


def work(state: SitesState, site: str) -> Publication:
    own = state.held[site]
    return Publication(site, own.base, own.number)


def test_leases_are_every_part_of_every_batch_once() -> None:
    parts = [(step, CUT.part(n)) for n in range(CUT.total) for step in CUT.batches(n)]
    assert sorted(parts) == [(step, part) for step in range(1, 12) for part in range(2)]


def test_two_sites_that_keep_up_take_the_parts_of_every_block_in_turn() -> None:
    state = SitesState().after((ready("a", 0), ready("b", 0)), rules())
    held = []
    while not state.finished(rules()):
        held.append((state.held["a"].number, state.held["b"].number))
        state = state.after((work(state, "a"), work(state, "b")), rules())
        assert state.share == 1.0
    assert held == [(0, 1), (2, 3), (4, 5)]
    assert state.held == {}


def test_a_late_site_is_merged_later_and_one_that_is_too_late_loses_its_lease() -> None:
    state = SitesState().after((ready("a", 0), ready("b", 0)), rules())
    late = work(state, "b")
    state = state.after((work(state, "a"),), rules())
    assert state.share == 0.5  # what b trains on comes on top
    state = state.after((work(state, "a"),), rules())
    merged = state.after((work(state, "a"), late), rules())
    assert merged.done == 4
    state = state.after((work(state, "a"),), rules())
    assert "b" not in state.held
    assert state.held["a"].number == late.lease  # given out again
    assert "given out again" in state.refusal(late)


def test_rounds_are_needed_from_the_snapshot_before_the_newest_or_from_an_older_restart() -> None:
    state = SitesState().after((ready("a", 0), ready("b", 0)), rules())
    floors = []
    for number in range(1, 6):
        said = [
            replace(work(state, "a"), needs=number, snapshot=number),
            replace(work(state, "b"), needs=min(number, 2)),
        ]
        state = state.after(tuple(said), rules(cut=LeaseCut(60, 4, 2)))
        floors.append(state.floor)
    assert floors == [0, 1, 2, 2, 2]
    assert state.snapshots == (4, 5)
    for _ in range(4):  # b has lost its lease, so nothing of it is waited for
        state = state.after((work(state, "a"),), rules(cut=LeaseCut(60, 4, 2)))
    assert state.needs == {"a": 5}
    assert state.floor == 4
    late = replace(work(state, "a"), needs=state.number + 1)
    assert "speaks of rounds after 10" in state.refusal(late)


def test_a_round_waits_for_those_who_were_in_the_last_one() -> None:
    state = SitesState()
    both = (ready("a", 0), ready("b", 0))
    assert not state.closes(both[:1], 0.0, rules())  # the other one may be starting
    assert state.closes(both[:1], 10.0, rules())
    assert state.closes(both, 0.0, rules())
    state = state.after(both, rules())
    assert not state.closes((work(state, "a"),), 9.0, rules())
    assert state.closes((work(state, "a"),), 10.0, rules())
    assert not state.closes((work(state, "a"),), 99.0, rules(needed=2))
    state = state.after((work(state, "a"),), rules())
    assert state.closes((work(state, "a"),), 0.0, rules())  # b was late: nobody waits for it


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Publication("a", 1, 1), "merged or given out again"),
        (Publication("c", 1, 0), "merged or given out again"),
        (Publication("a", 7, 0), "and there were 1"),
        (Publication("a", 1, None), "says that it has no lease, and holds 0"),
        (Publication("c", 0, None), "is of a round that is over"),
    ],
)
def test_what_is_not_of_this_round_is_refused(found: Publication, why: str) -> None:
    state = SitesState().after((ready("a", 0), ready("b", 0)), rules())
    assert why in state.refusal(found)
    assert state.candidates([found]) == ()
    with pytest.raises(ValueError, match=f"site {found.site} published"):
        state.after((found,), rules())


@dataclass
class Bucket:
    """What the sites share: objects that are written once."""

    published: dict[tuple[int, str], Publication] = field(default_factory=dict)
    rounds: list[Members] = field(default_factory=list)


@dataclass
class Site:
    """A site: what it knows, what it has saved, and a round that it is about to write."""

    name: str
    here: SitePosition = field(default_factory=SitePosition)
    anchor: int = 0
    saved: tuple[SitePosition, int] | None = None
    waited: int = 0
    writes: tuple[int, Members] | None = None
    up: bool = True
    ended: bool = False


class Life:
    """Sites that do one thing at a time, in the order that a test gives."""

    def __init__(self, names: str, own: SitesRules) -> None:
        self.rules, self.bucket = own, Bucket()
        self.sites = {name: Site(name) for name in names}
        self.anchors = [0]  # after each round, as computed by whoever was first there

    def states(self) -> list[SitesState]:
        found = [SitesState()]
        for members in self.bucket.rounds:
            found.append(found[-1].after(members, self.rules))
        return found

    def merge(self, site: Site, to: int) -> None:
        """Apply rounds; all sites must come to the same anchors."""
        for number in range(site.here.at + 1, to + 1):
            members = self.bucket.rounds[number - 1]
            content = [self.bucket.published[one.base, one.site] for one in members]
            assert list(members) == content
            site.anchor = hash((site.anchor, tuple(one.content for one in content)))
            if number == len(self.anchors):
                self.anchors.append(site.anchor)
            assert self.anchors[number] == site.anchor

    def do(self, name: str) -> None:
        site = self.sites[name]
        if not site.up or site.ended:
            return
        states = self.states()
        if site.writes:  # it looked some time ago; others may have written since
            number, members = site.writes
            if number == len(self.bucket.rounds) + 1:
                self.bucket.rounds.append(members)
            site.writes, site.waited = None, 0
            return
        action = policy.next_action(name, site.here, states, self.rules)
        if action.kind == "train":
            site.here = SitePosition(site.here.at, site.here.lease, trained=True)
        elif action.kind == "move":
            self.merge(site, action.to)
            site.here, site.waited = policy.moved(site.here, action), 0
        elif action.kind == "end":
            site.ended = True
        else:
            self.meet(site, states[-1])

    def meet(self, site: Site, state: SitesState) -> None:
        said = policy.publication(site.name, site.here)
        content = "" if said.lease is None else str(hash((site.anchor, said.lease)))
        needs = min(site.here.at, site.saved[0].at if site.saved else site.here.at)
        snapshot = site.here.at if site.here.at % 2 == 1 else None
        said = Publication(said.site, said.base, said.lease, content, needs, snapshot)
        self.bucket.published.setdefault((said.base, said.site), said)
        found = state.candidates(self.bucket.published.values())
        site.waited = site.waited + 1 if len(found) >= self.rules.needed else 0
        if state.closes(found, float(site.waited), self.rules):
            site.writes = state.number + 1, found

    def fault(self, name: str, kind: int) -> None:
        site = self.sites[name]
        if kind == 0:
            site.saved = site.here, site.anchor
        elif kind == 1:
            site.up = False
        elif kind == 2:  # started again, from what it has saved
            here, anchor = site.saved or (SitePosition(), 0)
            self.sites[name] = Site(name, here, anchor, site.saved)
        else:  # started again, with its disk lost: from what is published
            self.sites[name] = Site(name)

    def check(self) -> None:
        done = [one.lease for members in self.bucket.rounds for one in members]
        merged = [lease for lease in done if lease is not None]
        newest = self.states()[-1]
        held = [own.number for own in newest.held.values()]
        every = sorted([*merged, *held, *newest.free, *range(newest.next, self.rules.cut.total)])
        assert every == list(range(self.rules.cut.total))  # each once, and none is lost
        self.check_kept(newest)
        for (base, name), said in self.bucket.published.items():
            mine = newest.held.get(name)
            if said.lease is not None and mine and (mine.number, mine.base) == (said.lease, base):
                assert said in newest.candidates([said])  # it waits, and nothing can refuse it

    def check_kept(self, newest: SitesState) -> None:
        """What may be deleted now is not read by a site that takes part, nor by one that joins."""
        floor, states = newest.floor, self.states()
        kept = newest.kept_from(states[floor])
        assert kept <= floor <= newest.number
        for name in newest.present | newest.held.keys():
            saved = self.sites[name].saved
            assert saved is None or floor <= saved[0].at
        merged = [one for members in self.bucket.rounds[floor:] for one in members]
        assert all(one.base >= kept for one in merged)
        assert all(own.base >= kept for own in newest.held.values())
        assert floor == 0 or floor <= newest.snapshots[0] < newest.snapshots[1] <= newest.number
        assert SitesState.from_json(json.loads(json.dumps(newest.to_json()))) == newest


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 13)), max_size=150)


@given(events=EVENTS, needed=st.integers(1, 2), late=st.integers(1, 3))
def test_any_order_of_events(events: list[tuple[str, int]], needed: int, late: int) -> None:
    """Sites work, save, die and come back in any order; in the end two of them go on."""
    life = Life("abc", rules(needed, late))
    for name, kind in events:
        if kind < 4:
            life.fault(name, kind)
        else:
            life.do(name)
        life.check()
    life.fault("c", 1)
    for name in "ab":
        if not life.sites[name].up:
            life.fault(name, 2)
    for _ in range(2000):  # both do something again and again, so the run comes to its end
        for name in "ab":
            life.do(name)
        if all(life.sites[name].ended for name in "ab"):
            break
    life.check()
    assert life.states()[-1].finished(life.rules)
    assert life.sites["a"].anchor == life.sites["b"].anchor == life.anchors[-1]
    assert all(life.sites[name].ended for name in "ab")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_a_site_alone_and_a_newcomer_train_on_everything(order: list[int]) -> None:
    life = Life("ab", rules())
    for _ in range(30):
        life.do("a")
    for one in [*order, *[0, 1] * 500]:
        life.do("ab"[one % 2])
    assert life.states()[-1].finished(life.rules)
    life.check()


def test_a_restarted_site_does_again_what_was_merged_already() -> None:
    life = Life("ab", rules())
    for _ in range(4):
        life.do("a")
        life.do("b")
    before = life.sites["a"].here
    assert before.lease is not None
    assert not before.trained
    life.fault("a", 0)
    for _ in range(6):
        life.do("a")
        life.do("b")
    assert life.sites["a"].here.at > before.at
    life.fault("a", 2)
    life.do("a")
    assert life.sites["a"].here == SitePosition(before.at, before.lease, trained=True)
    for _ in range(300):
        life.do("a")
        life.do("b")
    assert life.states()[-1].finished(life.rules)
    life.check()


def test_a_site_that_lost_its_lease_drops_its_work_and_moves_on() -> None:
    own = rules(late=1)
    states = [SitesState()]
    states.append(states[-1].after((ready("a", 0), ready("b", 0)), own))
    lease = states[-1].held["b"]
    for _ in range(2):
        states.append(states[-1].after((work(states[-1], "a"),), own))
    action = policy.next_action("b", SitePosition(1, lease), states, own)
    assert action == policy.SiteAction("move", 3, None, dropped=True)


def test_work_of_an_earlier_grant_of_the_same_lease_is_refused() -> None:
    own = rules(late=1, cut=LeaseCut(steps=4, length=4, parts=2))
    state = SitesState().after((ready("a", 0), ready("b", 0)), own)
    stale = work(state, "b")
    state = state.after((work(state, "a"),), own)
    state = state.after((ready("a", 2),), own)  # nothing else is left: b's lease goes to a
    assert state.held["a"].number == stale.lease
    for base in (3, 4):
        state = state.after((ready("b", base),), own)  # and back, since a does nothing with it
    assert state.held["b"].number == stale.lease
    assert "given out again" in state.refusal(stale)
    assert state.refusal(work(state, "b")) == ""
