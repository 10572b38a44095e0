"""What a site takes: refusals with the limit, by how much and what fits; and what is monotone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.catalog import accelerators
from penstock.errors import PenstockError
from penstock.plan.hardware.cap import capped, curve, speed_at
from penstock.plan.hardware.cluster import machine_of
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.power.limits import SiteLimit
from penstock.plan.power.power import NETWORK_W, node_power
from penstock.plan.power.racks import unit_of
from penstock.plan.power.site import (
    cap_for,
    fitting,
    power_notes,
    site_limits,
    under_feed,
    use_of,
)
from penstock.run.clusters.file import ClusterFile

KNOWN = [a.name for a in accelerators.TABLE if a.tdp_w and a.link != "none"]
names = st.sampled_from(KNOWN)
counts = st.integers(1, 4096)
watts = st.floats(1e3, 1e8)


def cluster(nodes: int = 4, name: str = "H100", **site: Any) -> Machine:
    table = {"name": "mine", "nodes": nodes, "accelerator": {"name": name}, "site": site}
    return machine_of(ClusterFile.model_validate(table))


def limit(machine: Machine, name: str) -> SiteLimit:
    return next(found for found in site_limits(machine) if found.name.startswith(name))


@pytest.mark.parametrize("name", ["GB200", "GB300"])
@pytest.mark.parametrize("hall", ["air", "legacy air", "rear-door"])
def test_racks_with_cold_plates_are_refused_where_there_is_only_air(name: str, hall: str) -> None:
    found = limit(cluster(name=name, cooling=hall), "site.cooling")
    assert not found.fits
    assert found.word == "cooling"
    assert 90e3 < found.needed < 142e3  # racks are sold with 120 to 142 kW
    assert found.over == found.needed - found.available > 30e3
    line = found.line()
    assert "too much" in line
    assert "no liquid" in line
    assert "direct liquid" in line
    if hall != "legacy air":  # where not one of today's nodes can stand
        assert "in a rack" in found.nearest[0]


def test_a_hall_with_liquid_takes_them() -> None:
    assert all(found.fits for found in site_limits(cluster(name="GB200", cooling="direct liquid")))
    assert all(found.fits for found in site_limits(cluster(name="H100", cooling="rear door")))


def test_twice_the_feed_is_refused_with_what_fits() -> None:
    machine = cluster(nodes=256, power_limit_w="1 MW", pue=1.2)
    found = limit(machine, "site.power_limit_w")
    watts_each = node_power(machine, "air").busy_w / 8 + NETWORK_W  # type: ignore[union-attr]
    assert found.needed == pytest.approx(2048 * watts_each * 1.2)
    assert found.over == pytest.approx(found.needed - 1e6)
    fits = fitting(machine)
    assert fits
    assert fits % 8 == 0
    assert fits * watts_each * 1.2 <= 1e6 < (fits + 8) * watts_each * 1.2
    assert f"{fits:,} of the 2,048 accelerators" in found.nearest[0]
    smaller = cluster(nodes=fits // 8, power_limit_w="1 MW", pue=1.2)
    assert limit(smaller, "site.power_limit_w").fits


def test_a_little_too_much_is_offered_a_power_limit_that_does_fit() -> None:
    machine = cluster(nodes=256, power_limit_w="2 MW")
    words = limit(machine, "site.power_limit_w").nearest[1]
    cap_w = float(words.split("limit of ")[1].split(" W")[0])
    assert 200 <= cap_w < 700
    assert limit(capped(machine, cap_w), "site.power_limit_w").fits
    assert not limit(capped(machine, cap_w + 20), "site.power_limit_w").fits


def test_an_underfed_machine_gets_the_limit_that_the_refusal_names() -> None:
    machine = cluster(nodes=256, power_limit_w="2 MW")
    fed, words = under_feed(machine)
    named = float(limit(machine, "site.power_limit_w").nearest[1].split("limit of ")[1].split()[0])
    assert fed == capped(machine, named)
    assert f"a limit of {named:.0f} W" in words
    assert limit(fed, "site.power_limit_w").fits
    assert under_feed(fed) == (fed, "")
    with pytest.raises(PenstockError, match="704 of the 2,048 accelerators"):
        under_feed(cluster(nodes=256, power_limit_w="0.8 MW"))


def test_a_lower_limit_replaces_one_and_a_higher_one_does_not() -> None:
    machine = cluster()
    lower = capped(machine, 300)
    again = capped(capped(machine, 500), 300)
    assert again.matmul_flops == pytest.approx(lower.matmul_flops)
    assert again.memory_bytes_per_s == pytest.approx(lower.memory_bytes_per_s)
    assert (again.cap_w, again.capped) == (lower.cap_w, lower.capped)
    assert capped(lower, 500) == lower


def test_racks_hold_what_their_feed_and_their_places_allow() -> None:
    machine = cluster(nodes=16, rack_limit_w="20 kW", racks=7)
    use = use_of(machine)
    assert use
    assert (use.per_rack, use.racks) == (16, 8)  # 8.1 kW a node
    places = limit(machine, "site.racks")
    assert (places.word, places.fits, places.needed, places.available) == ("space", False, 8, 7)
    assert "112 of the 128 accelerators" in places.nearest[0]
    tight = limit(cluster(rack_limit_w="8 kW"), "site.rack_limit_w")
    assert not tight.fits
    assert any("under a limit of" in words for words in tight.nearest)
    # 20 kW is less than two nameplates of 10.2 kW.
    assert any("nameplates" in note for note in power_notes(cluster(rack_limit_w="20 kW")))


def test_a_power_limit_of_one_site_counts_for_each_of_several() -> None:
    one = cluster(nodes=64, power_limit_w="350 kW")
    assert not limit(one, "site.power_limit_w").fits
    assert limit(replace(one, sites=2), "site.power_limit_w").fits


def test_what_nobody_said_is_no_limit() -> None:
    assert site_limits(of_catalog("GB200", 72)) == ()
    assert site_limits(replace(cluster(cooling="air"), tdp_w=None)) == ()
    with pytest.raises(PenstockError, match=r"site\.cooling = \"ice\": not a cooling .* rear-door"):
        cluster(cooling="ice")


@pytest.mark.parametrize(
    ("name", "per_node", "domain"), [("GB200", 72, 72), ("GB300", 72, 72), ("B200", 8, 8)]
)
def test_rack_scale_domains(name: str, per_node: int, domain: int) -> None:
    machine = of_catalog(name, 144)
    assert machine.per_node == per_node
    assert machine.tiers[0].size == domain
    unit = unit_of(machine)
    assert unit
    assert unit.accelerators == per_node
    assert unit.rated_w
    assert 0.7 * unit.rated_w < unit.watts < unit.rated_w
    # A domain that is rented by the tray is one rack all the same.
    if domain > 16:
        trays = unit_of(of_catalog(name, 144, 4))
        assert trays
        assert trays.accelerators == domain
        assert trays.watts == pytest.approx(unit.watts)


@given(names, st.floats(0.3, 1.0), st.sampled_from(["air", "liquid", "immersion"]))
@settings(deadline=None, max_examples=60)
def test_half_the_limit_never_draws_more_nor_works_faster(
    name: str, share: float, kind: str
) -> None:
    machine = of_catalog(name, 16)
    assert machine.tdp_w
    full, half = (capped(machine, machine.tdp_w * s) for s in (max(0.6, share), 0.3))
    watts_full, watts_half = node_power(full, kind), node_power(half, kind)
    assert watts_full
    assert watts_half
    for level in ("rest_w", "wait_w", "busy_w"):
        assert getattr(watts_half, level) <= getattr(watts_full, level)
    assert watts_half.busy_w < watts_full.busy_w
    for rate, slow in half.matmul_flops.items():
        assert slow < full.matmul_flops[rate]
    assert half.memory_bytes_per_s <= full.memory_bytes_per_s


@given(names, counts, watts, watts, st.floats(1.0, 2.0))
@settings(deadline=None, max_examples=80)
def test_more_racks_never_fit_into_less_power(
    name: str, count: int, feed_w: float, other_w: float, pue: float
) -> None:
    low_w, high_w = sorted((feed_w, other_w))
    machine = replace(of_catalog(name, count), pue=pue)
    less, more = (fitting(replace(machine, power_limit_w=w)) for w in (low_w, high_w))
    assert less is not None
    assert more is not None
    assert less <= more
    # Nor into tighter racks, fewer places, or behind a worse cooling.
    tight = fitting(replace(machine, power_limit_w=high_w, rack_limit_w=40e3, racks=10))
    loose = fitting(replace(machine, power_limit_w=high_w, rack_limit_w=80e3, racks=20))
    assert tight is not None
    assert loose is not None
    assert tight <= loose <= more
    worse = fitting(replace(machine, power_limit_w=high_w, pue=pue * 1.1))
    assert worse is not None
    assert worse <= more


@given(names, st.integers(0, 256), st.integers(1, 256), st.floats(1.0, 1.9))
@settings(deadline=None, max_examples=60)
def test_a_site_draws_more_with_more_machines_and_more_pue(
    name: str, fewer: int, more: int, pue: float
) -> None:
    first = of_catalog(name, 8).per_node
    small, large = (of_catalog(name, n * first, first) for n in (fewer + 2, fewer + 2 + more))
    uses = [use_of(replace(m, pue=p)) for m in (small, large) for p in (pue, pue + 0.1)]
    a, b, c, d = (use.busy_w for use in uses if use)
    assert a < b < d
    assert a < c < d
    for use in uses:
        assert use
        assert 0 < use.swing_w < use.drop_w < use.busy_w


@given(names, st.floats(0.3, 0.99))
@settings(deadline=None, max_examples=40)
def test_the_limit_for_a_draw_keeps_to_it(name: str, share: float) -> None:
    machine = of_catalog(name, 8)
    assert machine.tdp_w
    usual = node_power(machine, "air")
    assert usual
    cap_w = cap_for(replace(machine, cooling="air"), share * usual.busy_w)
    if cap_w is None:
        return
    kept = node_power(capped(machine, cap_w), "air")
    assert kept
    assert kept.busy_w <= share * usual.busy_w * (1 + 1e-9)


def test_speeds_are_the_measured_ones_and_never_fall_with_the_limit() -> None:
    assert speed_at("training", "H200 SXM", 600 / 700) == pytest.approx(0.937)
    assert speed_at("training", "H200 SXM", 1.2) == 1.0
    assert speed_at("memory", "H200 SXM", 450 / 700) > 0.99  # memory is not slowed at first
    for load in ("training", "matmul", "memory"):
        speeds = [speed for _, speed in curve(load, "H100 SXM5")]
        assert speeds == sorted(speeds)


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(PenstockError, match=r"below what drivers set; write at least 200"):
        capped(of_catalog("H100", 8), 100)
    with pytest.raises(PenstockError, match=r"TDP of .* is not known"):
        capped(replace(of_catalog("H100", 8), tdp_w=None), 500)


def test_every_plan_has_a_verdict() -> None:
    plan = made.plan()
    assert plan.limits.binds.word == "compute"
    assert plan.limits.refused == ()
    assert plan.to_json()["limits"]["binds"]["measure"] == "share of the time"
    full = made.plan(memory=made.memory(used_gib=100))
    assert (full.limits.binds.word, full.limits.binds.number) == ("memory", pytest.approx(1.25))
