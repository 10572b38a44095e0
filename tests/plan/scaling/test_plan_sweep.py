"""A sweep: one run over many counts, its limits and where they take over."""

import json
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan.advice import WORK
from penstock.plan.hardware.machine import Machine
from penstock.plan.hardware.scale import counts, scaled
from penstock.plan.make import make
from penstock.plan.power.limits import LimitWord
from penstock.plan.scaling import limits
from penstock.plan.scaling import table as sweep_table
from penstock.plan.scaling.sweep import ScalePlanner, ScalePoint, ScalingSweep, sweep
from penstock.run.schema.run import Run


def run(**sections: object) -> Run:
    """llama-8b in 64 sequences a step: few enough that limits come early."""
    train = {"tokens": "100B", "batch_tokens": 64 * 8192}
    return made.run(**({"train": train} | sections))


@cache
def swept() -> ScalingSweep:
    return sweep(run(), made.machine(8), counts("1..1024"))


def test_every_count_has_a_point_and_every_point_the_batch_of_the_file() -> None:
    assert [point.accelerators for point in swept().points] == counts("1..1024")
    for point in swept().points:
        if point.plan:
            assert point.plan.job.layout.ranks == point.accelerators
            assert point.plan.step.tokens == 64 * 8192
            assert point.plan.memory.fits
            assert point.nodes == -(-point.accelerators // 8)


def test_shares_add_up_and_speed_stays_below_perfect() -> None:
    for point in swept().points:
        if point.plan:
            assert sum(point.shares.values()) == pytest.approx(1.0)
            assert point.plan.tokens_per_s <= 1.0001 * point.accelerators * swept().perfect_each


def test_the_layout_is_what_a_plan_of_that_machine_takes() -> None:
    point = next(p for p in swept().points if p.accelerators == 32)
    plan = make(run(), scaled(made.machine(8), 32))
    assert point.plan is not None
    assert point.plan.step.step_s == pytest.approx(plan.step.step_s)
    assert point.plan.life.days == pytest.approx(plan.life.days)


def test_limits_take_over_from_memory_to_the_work_to_the_network() -> None:
    limits = list(dict.fromkeys(point.limit for point in swept().points))
    assert limits[0] == "memory: nothing fits"
    assert "matmuls" in limits
    assert limits[-1] == "network between nodes"
    turns = swept().takeovers
    assert [turn.limit for turn in turns] == limits[1:]
    last = turns[-1]
    assert str(last) == (
        f"from {last.accelerators:,} accelerators: network between nodes, before that {last.before}"
    )


def test_a_count_that_nothing_fits_says_by_how_much() -> None:
    point = swept().points[0]
    assert point.plan is None
    assert "out of memory in every layout; the nearest" in point.reason
    assert point.to_json()["days"] is None


def test_too_few_sequences_are_a_point_and_not_an_error() -> None:
    point = ScalePlanner.of(run(), made.machine(8)).at(8 * 67)  # a prime above the 64 sequences
    assert (point.plan, point.limit) == (None, "batch: fewer sequences than ranks can use")
    assert "64 sequences a step cannot be spread over 536 accelerators" in point.reason


def test_a_run_that_never_ends_is_a_point_and_not_an_error() -> None:
    frail = made.machine(8, node_mtbf_s=600.0)
    point = ScalePlanner.of(run(), frail).at(1024)
    assert (point.plan, point.limit) == (None, "failures and restarts")
    assert "never end" in point.reason


def test_the_files_layout_is_left_aside_and_said_so() -> None:
    fixed = sweep(run(layout={"shard": 8}), made.machine(8), [16], warnings=["assumed"])
    assert fixed.points[0].plan is not None
    assert fixed.points[0].plan.job.layout.ranks == 16
    assert fixed.warnings[0] == "assumed"
    assert "left aside" in fixed.warnings[-1]


def test_this_machine_is_planned_with_what_it_can_train() -> None:
    here = sweep(run(cluster={"use": "here"}), made.machine(8), [64]).points[0].plan
    assert here is not None
    assert (here.job.layout.model_ways, here.job.layout.recompute) == (1, "none")


def test_what_cannot_grow_is_told_before_any_work() -> None:
    seen: list[tuple[int, int]] = []
    lone = made.machine(8, accelerator="Own", tiers=made.machine(8).tiers)
    with pytest.raises(PenstockError, match="no network between nodes"):
        sweep(run(), lone, [8, 16], lambda *now: seen.append(now))
    assert seen == []


def test_epochs_of_a_dataset_that_is_not_built_are_refused() -> None:
    endless = run(train={"epochs": 2}, data={"dataset": "nowhere"})
    with pytest.raises(PenstockError, match=r"nowhere.* is not in"):
        sweep(endless, made.machine(8), [8])


def test_progress_tells_each_count() -> None:
    seen: list[tuple[int, int]] = []
    sweep(run(), made.machine(8), [64, 128], lambda *now: seen.append(now))
    assert seen == [(64, 0), (128, 1)]


def test_json_has_every_point_and_takeover() -> None:
    table = json.loads(json.dumps(swept().to_json(), allow_nan=False))
    assert len(table["points"]) == len(swept().points)
    assert table["takeovers"] == [str(turn) for turn in swept().takeovers]
    last = table["points"][-1]
    assert last["tokens_per_s_each"] == pytest.approx(last["tokens_per_s"] / 1024)
    assert {"layout", "step_s", "mfu", "days", "effective", "usd", "bottleneck"} <= set(last)


def test_the_table_has_a_row_per_count_and_the_takeovers() -> None:
    lines = sweep_table.lines(swept())
    assert lines[0].split()[:3] == ["accelerators", "layout", "tokens/s"]
    assert [line.split()[0] for line in lines[1:12]] == [f"{n:,}" for n in counts("1..1024")]
    assert lines[1].endswith("memory: nothing fits")
    assert str(swept().takeovers[-1]) in lines
    assert "USD" in lines[0]


def test_of_counts_that_fail_alike_the_last_says_why() -> None:
    points = [ScalePoint(n, 1, "memory: nothing fits", reason=f"short at {n}") for n in (1, 2, 4)]
    lines = sweep_table.lines(ScalingSweep("x", "H100", tuple(points), 1.0))
    assert [line for line in lines if "short at" in line] == ["4: short at 4"]


def test_without_a_price_there_is_no_column_for_it() -> None:
    owned = run(cluster={"use": "mine.toml"})
    plain = sweep_table.table(sweep(owned, made.machine(8), [64]).points)
    assert "USD" not in plain[0]


def test_layouts_are_short() -> None:
    lay = replace(made.job(8).layout, replicate=4, shard=1, tensor=2, recompute="full")
    assert sweep_table.short(lay) == "r4 t2 m1 full"


def test_a_point_without_a_plan_has_no_shares() -> None:
    assert ScalePoint(8, 1, "memory: nothing fits").shares == {}


def binding(counts_: list[int], on: Machine, **sections: object) -> dict[int, ScalePoint]:
    found = sweep(run(**sections), on, counts_)
    return {point.accelerators: point for point in found.points}


def test_each_row_has_one_word_and_its_number() -> None:
    words = {point.accelerators: point.binds for point in swept().points}
    assert (words[1].word, words[1].measure) == ("memory", "needed over available")
    assert words[1].number > 1
    assert words[1024].word == "network"
    last = swept().points[-1]
    assert words[1024].number == max(last.losses.values()) < 1
    lines = sweep_table.lines(swept())
    assert f"network {100 * words[1024].number:.0f} %" in lines[11]
    assert last.to_json()["binds"]["word"] == "network"
    assert last.watts == pytest.approx(last.plan.site.busy_w)  # type: ignore[union-attr]


def test_every_name_of_a_limit_has_its_word() -> None:
    names = {*limits.LOSSES.values(), *limits.LIFE_LOSSES.values(), *limits.OF_SITE.values()}
    names |= {limits.NOTHING_FITS, limits.TOO_FEW_SEQUENCES, limits.OVER_BUDGET, *WORK}
    names |= {"network inside the node", "network between nodes", limits.UNKNOWN_LINK}
    assert names <= limits.WORD.keys()
    assert set(limits.WORD.values()) == set(get_args(LimitWord))


def test_a_feed_a_hall_and_places_end_the_growth() -> None:
    fed = binding([64, 256], made.machine(8, power_limit_w=150e3))
    assert fed[64].plan is not None
    assert (fed[256].plan, fed[256].binds.word) == (None, "power")
    assert fed[256].binds.number == pytest.approx(256 * 1131.35 / 150e3, rel=0.01)
    assert "accelerators (16 nodes) fit" in fed[256].reason
    hot = binding([64], made.machine(8, hall="legacy air", rack_limit_w=8e3))
    assert (hot[64].plan, hot[64].binds.word) == (None, "power")
    full = binding([64, 128], made.machine(8, racks=2))
    assert [full[n].binds.word for n in (64, 128)] == ["compute", "space"]


def test_growth_goes_on_over_several_sites_until_they_are_full() -> None:
    site = {"power_limit_w": 150e3, "sites": 4}
    linked = binding([64, 256, 512, 1024], made.machine(8, site_bytes_per_s=1e12, **site))
    assert [linked[n].sites for n in (64, 256, 512, 1024)] == [1, 2, 4, 4]
    assert linked[1024].binds.word == "power"
    far = linked[512].plan
    assert far is not None
    assert (far.job.machine.tiers[-1].name, far.job.machine.tiers[-2].size) == ("wan", 128)
    assert far.job.machine.tiers[-1].bytes_per_s == pytest.approx(1e12 / 128)
    slow = binding([512], made.machine(8, site_bytes_per_s=1e9, **site))[512]
    assert slow.limit == "network between sites"
    assert slow.tokens_per_s < linked[512].tokens_per_s  # type: ignore[operator]
    unknown = binding([256], made.machine(8, **site))[256]
    assert (unknown.plan, unknown.binds.word) == (None, "network")
    assert "site.link" in unknown.reason


def test_money_binds_where_the_budget_ends() -> None:
    usd = swept().points[-1].plan.bill.usd  # type: ignore[union-attr]
    dear = binding([64, 1024], made.machine(8), budget={"usd": 0.9 * usd})
    assert dear[64].binds.word != "money"
    assert dear[1024].binds.word == "money"
    assert dear[1024].binds.number == pytest.approx(1 / 0.9)
    with pytest.raises(PenstockError, match="no price is known"):
        sweep(run(budget={"usd": 10}), made.machine(8, accelerator="Own"), [8])
