"""Lives of a run: they add up, they repeat, and they agree with what is known in closed form."""

from dataclasses import replace
from math import exp, expm1, inf, isclose

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import made_lives as made
from penstock.ledger.causes import Cause
from penstock.plan.life.causes import CAUSES, hardware_classes
from penstock.simulate.account import LifeAccount
from penstock.simulate.draws import Draws, generator
from penstock.simulate.life import Life
from penstock.simulate.pool import NodePool
from penstock.simulate.record import Recorder
from penstock.simulate.recovery import LifeResult
from penstock.simulate.traces import Trace

LOST = [list(Cause).index(c) for c in (Cause.STARTUP, Cause.CHECKPOINT, Cause.DOWN, Cause.REDO)]


def effective(life: LifeResult) -> float:
    return 1 - sum(life.seconds[i] for i in LOST) / life.wall_s


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 400),
    st.floats(0, 20),
    st.booleans(),
    st.integers(0, 8),
    st.sampled_from([None, 60.0, 600.0]),
    st.sampled_from([1, 4]),
    st.sampled_from([1.0, 5.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
@settings(deadline=None, max_examples=60)
def test_causes_add_up_to_the_wall_clock(
    seed: int,
    failures: float,
    software: float,
    live: bool,
    spares: int,
    stall_s: float | None,
    sites: int,
    infant: float,
    lemons: float,
) -> None:
    own = made.conditions(
        live=live,
        spares=spares,
        stall_s=stall_s,
        sites=sites,
        cut_per_s=0.0 if sites == 1 else 1 / made.DAY_S,
        infant=infant,
        lemons=lemons,
        horizon_s=3 * made.DAY_S,
        trace=Trace((0.0, 40000.0, 90000.0), (64, 40, 70), 200000.0) if spares == 3 else None,
    )
    life = made.lived(own, made.a_day(failures, software=software), seed)
    assert isclose(sum(life.seconds), life.wall_s, rel_tol=1e-9)
    assert isclose(life.wall_s, own.horizon_s, rel_tol=1e-9)
    assert min(life.seconds) >= 0
    assert life.seconds[list(Cause).index(Cause.UNEXPLAINED)] == 0
    assert set(life.interruptions) <= set(CAUSES)


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None, max_examples=10)
def test_the_same_seed_lives_the_same_life(seed: int, live: bool) -> None:
    own = made.conditions(live=live, horizon_s=3 * made.DAY_S)
    rates = made.a_day(60, software=5)
    assert made.lived(own, rates, seed) == made.lived(own, rates, seed)
    assert made.lived(own, rates, seed) != made.lived(own, rates, seed, life=1)


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1.0, 4.0]))
@settings(deadline=None, max_examples=10)
def test_a_life_that_is_recorded_is_the_same_life(seed: int, live: bool, infant: float) -> None:
    own = made.conditions(live=live, infant=infant, horizon_s=3 * made.DAY_S)
    rates, record = made.a_day(60, software=5), Recorder()
    recorded = Life(own, rates, Draws(generator(seed, 0)), record).run()
    assert recorded == made.lived(own, rates, seed)
    assert record.end_t == recorded.wall_s


@pytest.mark.parametrize(
    ("live", "steps", "compute_s", "down_s", "redo_s", "by_cause"),
    [
        (
            False,
            237730.22248656384,
            1726610.8523278143,
            2538714.2066085488,
            80355.15042086209,
            {"software": 203, "corruption": 17, "node": 152, "accelerator": 750, "switch": 124}
            | {"power": 11},
        ),
        (
            True,
            149604.5290951835,
            1076326.7114787824,
            3579935.860663054,
            39763.93820459269,
            {"software": 199, "corruption": 17, "node": 120, "accelerator": 526, "switch": 69}
            | {"power": 4},
        ),
    ],
)
def test_a_seed_lives_as_it_always_did(
    live: bool, steps: float, compute_s: float, down_s: float, redo_s: float, by_cause: dict
) -> None:
    """A faster simulator must live the same lives; these were lived before it was made faster."""
    own = made.conditions(live=live, horizon_s=60 * made.DAY_S, infant=3.0, repair_s=6 * 3600.0)
    life = made.lived(own, made.a_day(40, software=5), seed=7)
    assert life.interruptions == by_cause
    assert life.steps == pytest.approx(steps, rel=1e-9)
    found = [life.seconds[list(Cause).index(c)] for c in (Cause.COMPUTE, Cause.DOWN, Cause.REDO)]
    assert found == pytest.approx([compute_s, down_s, redo_s], rel=1e-9)


def test_nothing_fails_at_a_rate_of_zero_and_the_run_ends_when_it_should() -> None:
    own = made.conditions(steps=10_000, horizon_s=inf, evaluate_share=0.0, fast_share=0.0)
    life = made.lived(own, made.NONE)
    assert life.finished
    assert life.steps == pytest.approx(10_000)
    straggles = life.seconds[list(Cause).index(Cause.PEER_WAIT)] - 0.05 * 100_000
    saves = 100_000 / 600 * 3
    # A site may fail once in ten years: this life has none.
    assert life.interruptions == {}
    assert life.wall_s == pytest.approx(120 + 100_000 + saves + straggles, rel=1e-3)


@given(st.floats(2.0, 48.0), st.floats(200.0, 1200.0), st.integers(0, 1000))
@example(mtbf_h=2.0, interval_s=1200.0, seed=0)
@example(mtbf_h=24.0, interval_s=300.0, seed=0)
@settings(deadline=None, max_examples=12)
def test_young_and_daly_agree_where_they_hold(mtbf_h: float, interval_s: float, seed: int) -> None:
    """Software failures alone: every failure restarts all, from the newest checkpoint."""
    mtbf_s, cost_s, start_s = mtbf_h * 3600, 10.0, 300.0
    own = made.conditions(
        horizon_s=2000 * mtbf_s,
        step_s=0.5,
        save_s=0.0,
        save_cost_s=cost_s,
        interval_s=interval_s,
        fast_every=0,
        fast_share=0.0,
        evaluate_share=0.0,
        startup_s=start_s,
        again_s=start_s,
        load_s=0.0,
        hang_s=1.0,
        nodes=6400,
        ranks=51200,
    )
    life = made.lived(own, made.a_day(0, software=86400 / mtbf_s), seed)
    assert life.interruptions["software"] == pytest.approx(2000, rel=0.15)
    seen_s = own.horizon_s / life.interruptions["software"]  # this life's own luck
    daly = interval_s / (
        seen_s * exp((start_s + 1) / seen_s) * expm1((interval_s + cost_s) / seen_s)
    )
    young = 1 - cost_s / interval_s - interval_s / 2 / seen_s - start_s / seen_s
    assert effective(life) == pytest.approx(daly, rel=0.02)
    if mtbf_h > 5:  # to first order, so only where failures are rare
        assert effective(life) == pytest.approx(young, rel=0.02)


def test_a_measured_stall_is_what_every_failure_costs() -> None:
    own = made.conditions(stall_s=600.0, fast_every=1, save_cost_s=0.0, horizon_s=200 * made.DAY_S)
    life = made.lived(own, made.a_day(0, software=48))
    assert life.interruptions["software"] / 200 == pytest.approx(48 * (1 - exp(-1)), rel=0.05)
    down = life.seconds[list(Cause).index(Cause.DOWN)] / sum(life.interruptions.values())
    assert down == pytest.approx(600, rel=0.02)


def test_hardware_classes_share_all_failures_and_lemons_cause_half() -> None:
    assert sum(one.share for one in hardware_classes()) == pytest.approx(1)
    own = made.conditions(nodes=6400, ranks=51200, lemons=0.05, horizon_s=30 * made.DAY_S)
    pool = NodePool(own, Draws(generator(0, 0)))
    assert pool.weight == pytest.approx(6400, rel=0.01)
    picked = [pool.node_at(pool.pick()) in pool.lemons for _ in range(4000)]
    assert np.mean(picked) == pytest.approx(0.5, abs=0.03)


def test_lemons_are_left_out_and_fail_less_often_then() -> None:
    own = made.conditions(repair_s=3600.0, spares=16, horizon_s=100 * made.DAY_S)
    life = made.lived(own, made.a_day(4))
    hardware = sum(n for c, n in life.interruptions.items() if c not in ("software", "site"))
    assert 0 < life.quarantined <= 16
    assert 120 < hardware < 360


def test_a_run_on_one_node_goes_on_after_its_node_was_left_out() -> None:
    own = made.conditions(
        nodes=1, ranks=8, replicas=1, spares=0, layout={"replicate": 1, "shard": 8}, lemons=0.0
    )
    life = made.lived(replace(own, horizon_s=200 * made.DAY_S), made.a_day(0.5, nodes=1))
    assert life.gave_up > 0
    assert effective(life) > 0.5


def test_spares_and_live_mode_help() -> None:
    def mean(**changed: object) -> float:
        own = made.conditions(repair_s=3 * made.DAY_S, **changed)
        return float(
            np.mean([effective(made.lived(own, made.a_day(4), life=i)) for i in range(10)])
        )

    assert mean(spares=0) + 0.01 < mean(spares=24) < mean(spares=24, live=True)


def test_infant_mortality_comes_early() -> None:
    calm = made.conditions(horizon_s=20 * made.DAY_S, spares=64)
    young = replace(calm, infant=8.0)
    rates = made.a_day(4)
    few = sum(made.lived(calm, rates).interruptions.values())
    many = sum(made.lived(young, rates).interruptions.values())
    assert many > 2.5 * few


def test_a_trace_that_takes_all_nodes_stops_the_run() -> None:
    gone = Trace((0.0, 86400.0), (64, 0), 30 * made.DAY_S)
    life = made.lived(made.conditions(trace=gone), made.NONE)
    assert life.interruptions["preemption"] == 1
    assert life.withdrawn_node_s == pytest.approx(29 * made.DAY_S * 64)
    assert life.seconds[list(Cause).index(Cause.DOWN)] == pytest.approx(29 * made.DAY_S, rel=0.01)


def test_a_site_that_is_back_is_used_though_nodes_fail_more_often_than_sites_return() -> None:
    """A failure of a node begins the restart again, and not the six hours without the site."""
    own = made.conditions(lemons=0.0, spares=64, horizon_s=10 * made.DAY_S, repair_s=3600.0)
    life = Life(own, made.a_day(40), Draws(generator(0, 0)))
    life.site_per_s = 1 / made.DAY_S
    done = life.run()
    assert done.interruptions["site"] > 5
    assert done.seconds[list(Cause).index(Cause.DOWN)] < 8 * made.DAY_S
    assert done.steps > 0.2 * own.horizon_s / own.step_s


def test_closed_form_work_equals_many_short_stretches() -> None:
    own = made.conditions()
    whole, cut = LifeAccount(own), LifeAccount(own)
    whole.work(100_000.0)
    for _ in range(1000):
        cut.work(100.0)
    assert cut.step == pytest.approx(whole.step)
    assert cut.durable_step() == whole.durable_step()
    assert cut.seconds == pytest.approx(whole.seconds)
    again = LifeAccount(own)
    again.work(again.seconds_to_step(5000))
    assert again.step == pytest.approx(5000)
