"""Rack-scale domains: a tray fails alone, and only the causes of the rack take all of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_lives as made
from penstock.catalog import nodes
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.life.causes import FaultClass, hardware_classes, nodes_taken
from penstock.plan.life.trays import DomainTrays, trays_of
from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.simulate.conditions import Conditions
from penstock.simulate.draws import Draws, generator
from penstock.simulate.life import Life
from penstock.simulate.pool import NodePool
from penstock.simulate.result import Simulation
from penstock.simulate.simulate import Question, simulate

RACK = DomainTrays(1, 4)
BY_NAME = {one.name: one for one in hardware_classes()}


def racks(**changed: object) -> Conditions:
    """8 racks of 72 in 36 replicas of 16."""
    own = made.conditions(
        ranks=576, per_node=72, nodes=8, spares=0, replicas=36, lemons=0.0,
        layout={"replicate": 36, "shard": 16}, trays=RACK,
    )  # fmt: skip
    return replace(own, **changed)  # type: ignore[arg-type]


def broken(own: Conditions, cause: FaultClass, times: int = 1) -> Life:
    """A life in which so many failures of one cause, each with a loss, have just happened."""
    life = Life(own, made.NONE, Draws(generator(1, 0)))
    life.working = True
    for _ in range(times):
        life._lose(life.pool.pick(), replace(cause, stays=0.0))
    return life


@pytest.mark.parametrize(
    ("cause", "rack", "node"),
    [("accelerator", 1, 1), ("node", 1, 1), ("switch", 1, 18), ("power", 1, 18)],
)
def test_switches_and_supplies_take_the_whole_rack(cause: str, rack: int, node: int) -> None:
    found = BY_NAME[cause]  # type: ignore[index]
    assert nodes_taken(found, 1) == rack  # a node is a rack of 72
    assert nodes_taken(found, 18) == node  # a node is a tray of 4
    assert nodes_taken(found, 0) == found.nodes
    assert nodes_taken(BY_NAME["cooling"], 18) == 8 * 18


def test_the_catalog_has_the_trays_of_racks_with_a_source() -> None:
    for name in ("GB200", "GB300"):
        assert trays_of(of_catalog(name, 144)) == RACK
        row = nodes.find(f"{name} NVL72 rack")
        assert row.tray == 4
        assert row.source_of("tray") == "MLPerf Training v5.1 system descriptions"
    assert trays_of(of_catalog("p6e-gb200", 144)) == DomainTrays(18, 0)
    assert trays_of(of_catalog("H100", 16)) == DomainTrays()


def test_a_tray_takes_its_four_accelerators_and_is_back_alone() -> None:
    life = broken(racks(), BY_NAME["accelerator"])
    assert life.pool.open == set()
    assert life.staff()
    # Of 36 replicas of 16, one cannot be staffed with 572 accelerators.
    assert life.account.active == pytest.approx(35 / 36)
    (event,) = life.events
    event[2]()
    assert life.pool.short == {}
    assert life.pool.lacking == {}
    assert life.staff()
    assert life.account.active == 1


def test_a_spare_tray_of_the_domain_stands_in_until_they_are_used_up() -> None:
    own = racks(nodes=1, ranks=72, replicas=4, layout={"replicate": 4, "shard": 18})
    spared = replace(own, trays=replace(RACK, spares=2))
    for times, short in ((2, 0), (3, 1)):
        life = broken(spared, BY_NAME["node"], times)
        assert sum(map(len, life.pool.short.values())) == short
        for event in list(life.events):
            event[2]()
        assert life.pool.short == life.pool.lacking == {}
        assert set(life.pool.trays_out.values()) == {0}


def test_a_rack_that_stands_by_takes_the_place_of_one_with_a_lost_tray() -> None:
    life = broken(racks(spares=1), BY_NAME["accelerator"])
    assert len(life.pool.open) == 1
    assert life.staff()
    assert life.account.active == 1
    assert not life.pool.waiting


def test_the_switch_of_a_rack_takes_all_of_it() -> None:
    life = broken(racks(), BY_NAME["switch"])
    assert len(life.pool.open) == 1
    assert life.staff()
    assert life.account.active == pytest.approx(31 / 36)


def test_a_tray_hits_the_replicas_on_it_and_no_others() -> None:
    life = Life(racks(), made.NONE, Draws(generator(2, 0)))
    sizes = set()
    for _ in range(20):
        lost = life._lose(life.pool.pick(), replace(BY_NAME["accelerator"], stays=0.0))
        sizes.add(len(lost.replicas))
        assert lost.host
    assert sizes == {1}  # 16 accelerators of a replica are four whole trays
    assert len(life._lose(0, replace(BY_NAME["switch"], stays=0.0)).replicas) == 5


@given(
    st.lists(st.tuples(st.sampled_from("lbrf"), st.integers(0, 7)), max_size=40), st.integers(0, 2)
)
def test_whatever_fails_and_comes_back_nothing_is_lost(moves, spares) -> None:
    own = racks(spares=2, trays=replace(RACK, spares=spares))
    pool = NodePool(own, Draws(generator(0, 0)))
    away: list[int] = []
    trays: list[tuple[int, int]] = []
    for what, place in moves:
        if what == "l" and place not in pool.open:
            trays.append((place, pool.node_at(place)))
            pool.lose_tray(place, spares, RACK.tray)
        elif what == "b" and trays:
            pool.tray_back(*trays.pop(0))
        elif what == "r" and place not in pool.open:
            away.append(pool.remove(place))
        elif what == "f":
            pool.replace_open()
        short = {p: len(found) for p, found in pool.short.items()}
        assert not set(short) & pool.open
        for one in range(own.nodes):
            if one not in pool.open:
                out = pool.trays_out.get(pool.node_at(one), 0)
                assert short.get(one, 0) == max(0, out - spares)
    for tray in trays:
        pool.tray_back(*tray)
    for node in away:
        pool.back(node)
    pool.replace_open()
    assert not pool.short
    assert not pool.lacking
    assert not pool.open


def lived(mode: str, spares: int, spare_trays: int) -> Simulation:
    run = load_table(
        {
            "name": "racks",
            "model": {"preset": "llama-70b"},
            "data": {"sequence": 4096},
            "train": {"tokens": "2T", "batch_tokens": 512 * 4096, "precision": "bf16"},
            "cluster": {"use": "GB200", "nodes": 8},
            "guard": {"mode": mode, "spares": spares},
        }
    )
    stated = {"node_mtbf": "10 days", "software_mtbf": "90 days", "spare_trays": spare_trays}
    return simulate(run, Question(12), FailuresSection.model_validate(stated))


@pytest.mark.parametrize("spares", [0, 1])
def test_plan_and_lives_of_racks_agree(spares: int) -> None:
    found = lived("restart", spares, 0)
    assert found.plan.life.wall_s == pytest.approx(np.mean(found.wall_s), rel=0.02)


def test_spare_trays_make_up_for_most_of_what_lost_trays_cost() -> None:
    bare, spared = lived("restart", 0, 0), lived("restart", 0, 2)
    assert spared.plan.life.wall_s == pytest.approx(np.mean(spared.wall_s), rel=0.01)
    assert np.mean(spared.wall_s) < 0.96 * np.mean(bare.wall_s)
