"""Who works, who waits, and when the present attempt should make room for others."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy.spares import (
    AvailableHost,
    choose_hosts,
    enough_hosts,
    majority,
    reason_to_restart,
)

A, B, C = AvailableHost("a", 2), AvailableHost("b", 2), AvailableHost("c", 2)


def test_the_supervisors_host_is_first_and_those_at_work_stay() -> None:
    working = replace(C, working=True)
    assert choose_hosts([A, B, working], 2, first="b") == ["b", "c"]
    assert choose_hosts([A, B, C], 2, first="a") == ["a", "b"]


@pytest.mark.parametrize(
    "unfit", [replace(A, leaving=True), replace(A, left_out=True), replace(A, slots=0)]
)
def test_hosts_that_cannot_work_are_not_chosen(unfit: AvailableHost) -> None:
    assert choose_hosts([unfit, B], 2, first="a") == ["b"]


HOSTS = st.lists(
    st.builds(
        AvailableHost,
        node=st.sampled_from("abcdef"),
        slots=st.integers(0, 3),
        working=st.booleans(),
        leaving=st.booleans(),
        left_out=st.booleans(),
    ),
    unique_by=lambda host: host.node,
    max_size=6,
)


@settings(deadline=None)
@given(HOSTS, st.integers(1, 4))
def test_never_more_than_asked_for_and_never_fewer_than_there_are(
    hosts: list[AvailableHost], nodes: int
) -> None:
    chosen = choose_hosts(hosts, nodes, first="a")
    assert len(chosen) == min(nodes, sum(host.fit for host in hosts))
    assert len(set(chosen)) == len(chosen)


@settings(deadline=None)
@given(HOSTS, st.integers(1, 4))
def test_after_a_change_there_is_nothing_left_to_change(
    hosts: list[AvailableHost], nodes: int
) -> None:
    """The hosts that were chosen are left in peace: no restart leads to another."""
    chosen = choose_hosts(hosts, nodes, first="a")
    after = [replace(host, working=host.node in chosen, spoiled=False) for host in hosts]
    assert reason_to_restart(after, nodes) == ""


def test_a_host_that_must_leave_is_a_reason_even_with_none_to_take_its_place() -> None:
    at_work = [replace(A, working=True), replace(B, working=True, leaving=True)]
    assert reason_to_restart(at_work, 2) == "b must leave"


def test_one_that_comes_is_a_reason_only_when_one_is_missing() -> None:
    at_work = [replace(A, working=True), B]
    assert reason_to_restart(at_work, 2) == "b came"
    assert reason_to_restart(at_work, 1) == ""


def test_one_in_quarantine_makes_room_where_others_can_go_on() -> None:
    bad = replace(B, working=True, left_out=True)
    assert reason_to_restart([replace(A, working=True), bad], 2) == "b is left out"
    assert reason_to_restart([bad], 2) == ""  # better a bad host than none
    assert reason_to_restart([bad, C], 2) == "b is left out"
    assert reason_to_restart([replace(A, working=True, spoiled=True)], 2) == "a is left out"


def test_a_host_that_an_hour_has_no_power_for_has_not_come() -> None:
    waits = [replace(A, working=True), replace(B, idle=True)]
    assert reason_to_restart(waits, 2) == ""
    assert reason_to_restart([*waits, C], 2) == ""  # it has no room
    assert reason_to_restart([*waits, C], 3) == "c came"


def test_the_wait_ends_with_all_or_with_some_and_never_with_none() -> None:
    assert enough_hosts([A, B], 2, waited_s=0.0, wait_s=30.0)
    assert not enough_hosts([A], 2, waited_s=29.0, wait_s=30.0)
    assert enough_hosts([A], 2, waited_s=30.0, wait_s=30.0)
    assert not enough_hosts([], 2, waited_s=99.0, wait_s=30.0)


def test_a_host_that_is_early_does_not_begin_alone_where_others_are_on_their_way() -> None:
    late = {"waited_s": 30.0, "wait_s": 30.0}
    assert [majority(nodes) for nodes in (1, 2, 3, 4, 64)] == [1, 2, 2, 3, 33]
    assert not enough_hosts([A], 3, least=2, **late)
    assert not enough_hosts([A, replace(B, leaving=True)], 3, least=2, **late)
    assert enough_hosts([A, B], 3, least=2, **late)
    assert enough_hosts([A, replace(B, left_out=True)], 2, least=2, **late)
    assert not enough_hosts([replace(A, left_out=True), replace(B, left_out=True)], 2, **late)
