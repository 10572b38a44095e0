"""Collectives over one to four tiers, against times worked out on paper."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.hardware import network
from penstock.plan.hardware.machine import Machine, NetworkTier
from penstock.plan.hardware.network import HALF_BYTES_OUTSIDE, UNHIDDEN, CommGroup, Dispatch
from planned_jobs import machine

UP = NetworkTier("scale-up", 8, 400e9, 2e-6)
RACK = NetworkTier("rack", 32, 50e9, 10e-6)
SPINE = NetworkTier("spine", 256, 20e9, 20e-6)
WAN = NetworkTier("wan", 1024, 1e9, 0.03)
TIERS = (UP, RACK, SPINE, WAN)


def on(*tiers: NetworkTier) -> Machine:
    return machine(tiers[-1].size, tiers=tiers)


def legs(g: CommGroup) -> list[tuple[str, int, int]]:
    """Tier, domains in the ring, ranks of the group in each."""
    return [(leg.tier.name, leg.ways, leg.below) for leg in g.legs]


ALL = on(*TIERS)


@pytest.mark.parametrize(
    ("ways", "stride", "found"),
    [
        (1, 1, []),
        (8, 1, [("scale-up", 8, 1)]),
        (4, 2, [("scale-up", 4, 1)]),
        (8, 2, [("scale-up", 4, 1), ("rack", 2, 4)]),
        (4, 8, [("rack", 4, 1)]),  # one rank of each node
        (64, 1, [("scale-up", 8, 1), ("rack", 4, 8), ("spine", 2, 32)]),
        (1024, 1, [("scale-up", 8, 1), ("rack", 4, 8), ("spine", 8, 32), ("wan", 4, 256)]),
        (2, 256, [("wan", 2, 1)]),
        (8, 64, [("spine", 4, 1), ("wan", 2, 4)]),
        (12, 1, [("scale-up", 6, 1), ("rack", 2, 6)]),  # 8 does not divide 12; 6 does
        (3, 4, [("rack", 3, 1)]),  # two fit in a node, but a ring of 3 has no pairs
    ],
)
def test_the_tiers_that_a_group_crosses(
    ways: int, stride: int, found: list[tuple[str, int, int]]
) -> None:
    assert legs(network.group(ALL, ways, stride)) == found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_machine_of_one_to_four_tiers(count: int) -> None:
    m = on(*TIERS[:count])
    g = network.group(m, TIERS[count - 1].size)
    assert [leg.tier for leg in g.legs] == list(TIERS[:count])


def test_a_domain_whose_size_the_group_does_not_divide_is_used_in_part() -> None:
    """128 ranks on racks of 72 are two rings of 64."""
    big = on(NetworkTier("scale-up", 72, 900e9, 2e-6), NetworkTier("scale-out", 144, 50e9, 10e-6))
    assert legs(network.group(big, 128)) == [("scale-up", 64, 1), ("scale-out", 2, 64)]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 48),
    st.integers(1, 12),
)
def test_legs_always_make_up_the_group(growth: list[int], ways: int, stride: int) -> None:
    """Odd sizes included: the rings nest, and no tier but the last holds more than fits in it."""
    size, tiers = 1, []
    for i, more in enumerate(growth):
        size *= more
        tiers.append(NetworkTier(f"t{i}", size, 1e9, 0.0))
    found = network.group(on(*tiers), ways, stride)
    below = 1
    for leg in found.legs:
        assert leg.below == below
        assert leg.ways > 1
        below *= leg.ways
        assert leg.tier is tiers[-1] or below * stride <= leg.tier.size
    assert below == ways


def test_a_gather_in_one_node_by_hand() -> None:
    """8 ranks gather 80 MB: 70 MB come in, and 1 MB of ramp, at 400 GB/s; 7 hops, one in four."""
    took = network.gather_s(network.group(ALL, 8), 80e6)
    assert took == pytest.approx(71e6 / 400e9 + 7 * 2e-6 / 4)


def test_a_gather_over_two_nodes_by_hand() -> None:
    inside = 71e6 / 400e9 + 7 * 2e-6 / 4
    # 10 MB per rank, half of them from the other node; the ramp outside is 2 MB.
    outside = 7e6 / 50e9 + 10e-6  # one hop is never hidden
    assert inside > outside
    took = network.gather_s(network.group(ALL, 16), 80e6)
    assert took == pytest.approx(inside + outside / 4)


def test_a_gather_over_a_wide_area_by_hand() -> None:
    """Two sites, one rank in each: a hop of 30 ms."""
    took = network.gather_s(network.group(ALL, 2, 256), 80e6)
    assert took == pytest.approx(42e6 / 1e9 + 0.03)


def test_an_all_reduce_is_two_gathers() -> None:
    g = network.group(ALL, 64)
    assert network.all_reduce_s(g, 1e8) == 2 * network.gather_s(g, 1e8)


def test_alone_nothing_is_sent() -> None:
    g = network.group(ALL, 1)
    assert network.gather_s(g, 1e9) == network.all_to_all_s(g, 1e9, 0.5) == 0


def test_all_to_all_by_hand() -> None:
    one = network.all_to_all_s(network.group(ALL, 8), 8e6, share=0.5)
    assert one == pytest.approx(7e6 / 0.5 / 400e9 + 7 / 4 * 2e-6)
    # Four nodes of eight: three quarters leave the node, which the rack is slower at.
    far = network.all_to_all_s(network.group(ALL, 32), 8e6, share=0.5)
    assert far == pytest.approx(6e6 / 50e9 + 7 / 4 * 2e-6 + 10e-6)


def test_a_token_with_two_experts_in_one_far_node_travels_there_once() -> None:
    """Of two copies of a token and four nodes, 3 × (1 − (3/4)²) / 2 of a copy leaves."""
    took = network.all_to_all_s(network.group(ALL, 32), 8e6, share=0.5, dispatch=Dispatch(2))
    assert took == pytest.approx(8e6 * 3 * (1 - 9 / 16) / 2 / 50e9 + 7 / 4 * 2e-6 + 10e-6)


def test_one_message() -> None:
    assert network.send_s(ALL, 4e6, 1, 2) == pytest.approx(4e6 / 400e9 + 2e-6)
    assert network.send_s(ALL, 4e6, 4, 2) == network.send_s(ALL, 4e6, 1, 2)
    assert network.send_s(ALL, 4e6, 8, 2) == pytest.approx(4e6 / 50e9 + 10e-6)
    # The first hop of four stays inside the eight, the second leaves them: it sets the pace.
    assert network.send_s(ALL, 4e6, 4, 4) == network.send_s(ALL, 4e6, 8, 2)
    assert network.send_s(ALL, 4e6, 32, 2) == pytest.approx(4e6 / 20e9 + 20e-6)
    assert network.send_s(ALL, 4e6, 5000, 2) == pytest.approx(4e6 / 1e9 + 0.03)


WAYS = st.integers(0, 10).map(lambda n: 2**n)
STRIDES = st.integers(0, 5).map(lambda n: 2**n)
SIZES = st.floats(0, 1e11)


@given(WAYS, STRIDES, SIZES, SIZES, st.integers(1, 8))
def test_more_bytes_never_take_less(
    ways: int, stride: int, a: float, b: float, copies: int
) -> None:
    g = network.group(ALL, ways, stride)
    low, high = sorted((a, b))
    assert network.gather_s(g, low) <= network.gather_s(g, high)
    assert network.all_to_all_s(g, low, 0.5, Dispatch(copies)) <= network.all_to_all_s(
        g, high, 0.5, Dispatch(copies)
    )
    assert network.send_s(ALL, low, stride, 2) <= network.send_s(ALL, high, stride, 2)


@given(WAYS, WAYS, STRIDES, SIZES, st.integers(1, 8))
def test_more_ways_never_take_less(a: int, b: int, stride: int, size: float, copies: int) -> None:
    few, many = (network.group(ALL, ways, stride) for ways in sorted((a, b)))
    least = 1 - 1e-12  # rounding
    assert network.gather_s(many, size) >= network.gather_s(few, size) * least
    together = network.all_to_all_s(few, size, 0.5, Dispatch(copies))
    assert network.all_to_all_s(many, size, 0.5, Dispatch(copies)) >= together * least


@given(WAYS, STRIDES, SIZES, st.integers(0, 3), st.floats(1, 100), st.floats(0, 1))
def test_a_better_tier_is_never_slower(
    ways: int, stride: int, size: float, which: int, faster: float, nearer: float
) -> None:
    tiers = list(TIERS)
    old = tiers[which]
    tiers[which] = replace(old, bytes_per_s=old.bytes_per_s * faster, hop_s=old.hop_s * nearer)
    before, after = ALL, on(*tiers)
    for took in (
        lambda m: network.gather_s(network.group(m, ways, stride), size),
        lambda m: network.all_to_all_s(network.group(m, ways, stride), size, 0.5, Dispatch(4)),
        lambda m: network.send_s(m, size, stride, 2),
    ):
        assert took(after) <= took(before) * (1 + 1e-12)


@given(WAYS, STRIDES, st.floats(1e6, 1e11), st.floats(2, 50))
def test_an_oversubscribed_spine_slows_only_what_crosses_it(
    ways: int, stride: int, size: float, over: float
) -> None:
    thin = on(UP, RACK, replace(SPINE, bytes_per_s=SPINE.bytes_per_s / over), WAN)
    before = network.gather_s(network.group(ALL, ways, stride), size)
    after = network.gather_s(network.group(thin, ways, stride), size)
    crosses = ways > 1 and ways * stride > RACK.size and stride < SPINE.size
    assert after > before if crosses else after == before


@given(WAYS, SIZES, st.integers(1, 16), st.floats(0.1, 1))
def test_sending_a_token_once_never_sends_more(
    ways: int, size: float, copies: int, share: float
) -> None:
    g = network.group(ALL, ways)
    once = network.all_to_all_s(g, size, share, Dispatch(copies))
    assert once <= network.all_to_all_s(g, size, share) * (1 + 1e-12)


@given(WAYS.filter(lambda w: w > 1), STRIDES, st.floats(1e3, 1e11))
@settings(max_examples=50)
def test_the_slowest_tier_sets_the_pace_and_the_others_show_a_little(
    ways: int, stride: int, size: float
) -> None:
    g = network.group(ALL, ways, stride)
    alone = [network.gather_s(CommGroup(leg.ways, (leg,)), size) for leg in g.legs]
    rest = sum(alone) - max(alone)
    assert network.gather_s(g, size) == pytest.approx(max(alone) + UNHIDDEN * rest)


def test_small_messages_are_slow_by_themselves() -> None:
    """Half of the bandwidth at the message of `HALF_BYTES`: a fact of the catalog's curves."""
    flat = on(NetworkTier("scale-out", 2, 1e9, 0.0))
    took = network.gather_s(network.group(flat, 2), 2 * HALF_BYTES_OUTSIDE)
    assert took == pytest.approx(2 * HALF_BYTES_OUTSIDE / 1e9)
