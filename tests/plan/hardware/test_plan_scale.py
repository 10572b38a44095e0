"""The same hardware at another size, and the numbers that a scale means."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import Machine, NetworkTier, of_catalog
from penstock.plan.hardware.scale import MOST, counts, scaled


def test_a_range_is_its_ends_and_the_powers_of_two_between() -> None:
    assert counts("8..64") == [8, 16, 32, 64]
    assert counts("6..100") == [6, 8, 16, 32, 64, 100]
    assert counts("8..8") == [8]
    assert counts("64, 8,16") == [8, 16, 64]
    assert counts("3,8..16") == [3, 8, 16]
    assert len(counts("8..131072")) == 15


@given(st.integers(1, MOST), st.integers(1, MOST))
def test_every_range_is_sorted_and_at_most_doubles(one: int, other: int) -> None:
    low, high = sorted((one, other))
    found = counts(f"{low}..{high}")
    assert (found[0], found[-1]) == (low, high)
    assert all(a < b <= 2 * a for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("64..8", r"goes down; write 8\.\.64"),
        ("0..8", "0 is not between 1 and"),
        ("8..", "a gap"),
        ("", "a gap"),
        ("8,,16", "a gap"),
        ("many", "'many' is not a number"),
        ("-8", "'-8' is not a number"),
        ("8...64", "not a number"),
        ("²", "not a number"),
        ("8..99999999", "99,999,999 is not between"),
    ],
)
def test_nonsense_is_told(text: str, says: str) -> None:
    with pytest.raises(PenstockError, match=says):
        counts(text)


@pytest.mark.parametrize(
    "name",
    ["H100", "DGX B200", "GB200 NVL72 rack", "AWS p6e-gb200.36xlarge", "TPU v5p", "RTX 4090"],
)
@settings(max_examples=20)
@given(nodes=st.integers(2, 3000), start=st.integers(1, 4))
def test_the_catalogs_machines_grow_as_the_catalog_says(name: str, nodes: int, start: int) -> None:
    per_node = of_catalog(name, 10**6).per_node
    small = of_catalog(name, start * per_node, per_node)
    large = of_catalog(name, nodes * per_node, per_node)
    grown = scaled(small, large.accelerators, name)
    assert (grown.tiers, grown.nodes, grown.per_node) == (large.tiers, nodes, per_node)
    back = scaled(large, small.accelerators, name)
    assert (back.tiers, back.nodes, back.per_node) == (small.tiers, small.nodes, per_node)


def test_the_same_size_is_the_same_machine() -> None:
    machine = made.machine(16, usd_per_hour=2.0)
    assert scaled(machine, 16) is machine


def test_price_and_rates_stay() -> None:
    grown = scaled(made.machine(8, usd_per_hour=2.0, node_mtbf_s=1e6), 64)
    assert (grown.usd_per_hour, grown.node_mtbf_s, grown.nodes) == (2.0, 1e6, 8)
    assert grown.name == "64 × H100 SXM5"


def test_a_lone_accelerator_gets_the_catalogs_node() -> None:
    grown = scaled(of_catalog("H100", 1), 64)
    assert (grown.per_node, grown.nodes) == (8, 8)
    assert grown.tiers == of_catalog("H100", 64).tiers


def test_the_named_node_decides_the_network_beyond_it() -> None:
    one = of_catalog("GCP a3-highgpu-8g", 8)
    slow = scaled(one, 64, "GCP a3-highgpu-8g").tiers[-1]
    assert slow.bytes_per_s == scaled(one, 64).tiers[-1].bytes_per_s / 4  # 800 of 3,200 Gbit/s


OWN = (
    NetworkTier("node", 8, 3e11, 1e-6),
    NetworkTier("rack", 32, 5e10, 5e-6),
    NetworkTier("spine", 64, 2e10, 1e-5),
)


def test_a_files_own_network_grows_at_its_last_tier_and_is_cut_from_there() -> None:
    machine = made.machine(64, tiers=OWN)
    assert scaled(machine, 512).tiers == (*OWN[:2], replace(OWN[2], size=512))
    assert scaled(machine, 32).tiers == OWN[:2]
    assert scaled(machine, 16).tiers == (OWN[0], replace(OWN[1], size=16))
    assert scaled(machine, 4).tiers == (replace(OWN[0], size=4),)
    assert scaled(machine, 4).per_node == 4


def test_a_probed_node_gets_the_catalogs_network_when_it_leaves_it() -> None:
    node = made.machine(8, tiers=OWN[:1])
    assert scaled(node, 64).tiers == (OWN[0], of_catalog("H100", 64).tiers[-1])


def cpu(nodes: int = 1) -> Machine:
    tiers = (NetworkTier("node", 2 * nodes, 1.5e9, 2e-4),)
    return made.machine(8, accelerator="Some CPU", kind="cpu", per_node=2, nodes=nodes, tiers=tiers)


def test_what_has_no_known_network_stays_within_its_size() -> None:
    assert scaled(cpu(), 1).tiers[0].size == 1
    with pytest.raises(PenstockError, match=r"4 accelerators, but it has 2.*at most 2"):
        scaled(cpu(), 4)
    with pytest.raises(PenstockError, match="no network between nodes of Own"):
        scaled(made.machine(8, accelerator="Own", tiers=OWN[:1]), 16)
    with pytest.raises(PenstockError, match="at least one"):
        scaled(made.machine(8), 0)
