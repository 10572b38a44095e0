"""The simulator asks policies about the few that changed: they would decide the same about all."""

from hypothesis import given, settings
from hypothesis import strategies as st

import made_lives as made
from penstock.plan.life.causes import hardware_classes
from penstock.policy import quarantine, quorum, spares
from penstock.policy.quarantine import HardwareFault, QuarantineState
from penstock.policy.quorum import LiveReplica, QuorumState, ReplicaLost
from penstock.policy.spares import AvailableHost
from penstock.simulate.draws import Draws, generator
from penstock.simulate.pool import NodePool


@given(st.sets(st.integers(0, 63), max_size=20), st.integers(0, 12))
@settings(deadline=None, max_examples=50)
def test_spares_that_are_chosen_are_those_of_the_whole_list(lost: set[int], count: int) -> None:
    own = made.conditions(spares=count)
    pool = NodePool(own, Draws(generator(0, 0)))
    for place in lost:
        pool.remove(place)
    waiting = list(pool.waiting)
    whole = [AvailableHost(f"n{n}", 8, working=True) for n in range(64) if n not in lost]
    whole += [AvailableHost(f"n{n}", 8) for n in waiting]
    chosen = spares.choose_hosts(whole, 64, "")
    filled = pool.replace_open()
    at_work = {f"n{pool.node_at(p)}" for p in range(64) if p not in pool.open}
    assert at_work == set(chosen)
    assert len(filled) == min(len(lost), count)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 200_000), st.booleans()), min_size=1, max_size=30
    )
)
@settings(deadline=None, max_examples=60)
def test_strikes_of_one_node_decide_as_those_of_all(found: list[tuple[int, float, bool]]) -> None:
    own = made.conditions()
    pool = NodePool(own, Draws(generator(0, 0)))
    whole = QuarantineState()
    cause = hardware_classes()[0]
    for place, t_s, lost in sorted(found, key=lambda one: one[1]):
        fault = HardwareFault(f"n{place}", 0, cause.reason, t_s, "lost" if lost else "rank")
        whole, part = quarantine.decide(whole, fault)
        assert pool.judge(place, cause, lost, t_s) == (part is not None)


@given(
    st.lists(st.booleans(), min_size=2, max_size=8),
    st.integers(0, 7),
    st.integers(0, 4),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_two_stand_for_the_whole_quorum(
    members: list[bool], lost: int, fruitless: int, passed: bool
) -> None:
    lost %= len(members)
    members[lost] = True
    every = tuple(
        LiveReplica(1, fruitless if n == lost else 0, member=member, up=member)
        for n, member in enumerate(members)
    )
    after, actions = quorum.decide(QuorumState(3, every), ReplicaLost(lost, passed))
    others = sum(members) > 1
    two = QuorumState(3, (every[lost], LiveReplica(member=others, up=others)))
    small, said = quorum.decide(two, ReplicaLost(0, passed))
    assert small.replicas[0] == after.replicas[lost]
    assert [type(action) for action in said] == [type(action) for action in actions]
