"""A whole plan: its JSON, its bands, its budget, and a derivation for every number in it."""

import json
from dataclasses import replace
from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.errors import PenstockError
from penstock.ledger.ledger import Ledger
from penstock.plan.assemble import product_band
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import Band
from penstock.plan.plan import Plan
from penstock.plan.search.sensitivity import LayoutOption

# What programs are promised.
KEYS = {
    "fits", "layout", "memory", "step_s", "tokens_per_s", "mfu", "ledger", "bottleneck",
    "sensitivity", "effective", "days", "usd", "energy_kwh", "co2e_kg", "embodied_co2e_kg", "bands",
    "warnings",
    "accelerators", "machine", "checkpoint_interval_s", "interruptions", "over_budget", "next",
}  # fmt: skip
PEAK = 989e12


def everything() -> Plan:
    """A plan with a price, a site and layouts that were looked at."""
    on = made.machine(16, pue=1.2, gco2e_per_kwh=300.0, usd_per_hour=2.0)
    near = LayoutOption(Layout(shard=16, microbatch=8), 1e6, made.memory(90), "10 GiB too much")
    fits = LayoutOption(Layout(shard=16), 1e4, made.memory(60))
    job = made.job(16, on=on)
    return made.plan(job, options=(fits,), rejected=(near,), warnings=("from the catalog",))


def leaves(table: dict[str, Any], above: str = "") -> list[str]:
    names = []
    for key, value in table.items():
        names.append(above + key)
        if isinstance(value, dict):
            names += leaves(value, f"{above}{key}.")
    return names


@given(
    st.sampled_from([1, 8, 64, 1024]),
    st.integers(1, 100_000),
    st.floats(1, 200),
    st.none() | st.floats(0.01, 10),
    st.none() | st.floats(1.0, 2.0),
    st.none() | st.floats(1, 1000),
)
@settings(deadline=None, max_examples=40)
def test_every_plan_is_json_and_its_ledger_adds_up(
    count: int,
    steps: int,
    used_gib: float,
    price: float | None,
    pue: float | None,
    carbon: float | None,
) -> None:
    on = made.machine(count, usd_per_hour=price, pue=pue, gco2e_per_kwh=carbon)
    plan = made.plan(made.job(count, on=on), steps=steps, memory=made.memory(used_gib))
    table = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert table.keys() >= KEYS
    ledger = Ledger.from_json(table["ledger"])
    assert isclose(ledger.total, table["wall_s"] * count, rel_tol=1e-9)
    assert isclose(ledger.sum("usd") or 0.0, table["usd"], rel_tol=1e-9)
    assert isclose(ledger.sum("joules") or 0.0, table["energy_it_kwh"] * 3.6e6, rel_tol=1e-9)
    assert (table["co2e_kg"] is None) == (carbon is None) == (ledger.gco2e is None)
    assert table["fits"] == (used_gib <= 80)
    assert isclose(table["memory"]["peak_bytes"], used_gib * made.GIB)
    for name, band in table["bands"].items():
        value = plan.value(name)
        assert value is not None
        assert band["low"] <= value <= band["high"], name


def test_mfu_is_of_the_published_peak_and_never_a_guess() -> None:
    plan = made.plan()
    assert plan.mfu == pytest.approx(5e16 / plan.step.step_s / (8 * PEAK))
    assert "bf16 peak" in plan.mfu_of
    eight = made.plan(replace(made.job(), precision="mxfp8"))
    assert eight.mfu == pytest.approx((plan.mfu or 0) / 2, rel=0.01)
    assert "fp8 peak" in eight.mfu_of
    unknown = made.plan(made.job(on=made.machine(peak_flops={})))
    assert unknown.mfu is None
    assert unknown.to_json()["mfu"] is None
    assert "mfu" not in unknown.to_json()["bands"]
    assert "left out" in unknown.explain("mfu")


def test_every_number_has_a_derivation() -> None:
    plan = everything()
    table = plan.to_json()
    assert table["usd"] is not None
    for name in leaves(table):
        head, *lines = plan.explain(name).split("\n")
        assert head.startswith(name)
        assert lines, name
        assert all(line.strip() for line in lines), name


def test_derivations_hold_the_numbers_that_they_derive() -> None:
    plan = everything()
    hours = plan.life.ledger.total / 3600
    assert f"{hours:.5g} accelerator-hours × 2 USD" in plan.explain("usd")
    assert "activations 11.5 GiB" in plan.explain("memory.activations")
    assert "made by hand" in plan.explain("step_s")
    assert "guard.timeout" in plan.explain("effective")
    assert "PUE 1.2" in plan.explain("energy_kwh")
    assert "four of five" in plan.explain("days")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(PenstockError, match=r"no number 'memory\.activation'.*memory\.activations"):
        everything().explain("memory.activation")


def test_a_plan_over_its_budget_says_by_how_much() -> None:
    free = made.plan(made.job(on=made.machine(usd_per_hour=2.0)))
    hours, usd = free.life.wall_s / 3600, free.bill.usd or 0.0
    assert free.over_budget == ()
    run = made.run(budget={"hours": hours / 2, "usd": usd / 4})
    over = made.plan(free.job, run).over_budget
    assert len(over) == 2
    assert over[0].endswith(f"the plan takes {hours:,.1f} h, {hours / 2 * 60:,.0f} min over")
    assert over[1].endswith(f"the plan takes {usd:,.2f} USD, {usd * 3 / 4:,.2f} over")
    roomy = made.run(budget={"hours": 2 * hours, "usd": 2 * usd})
    assert made.plan(free.job, roomy).over_budget == ()


def test_a_budget_without_a_price_is_not_silently_kept() -> None:
    run = made.run(cluster={"use": "ours.toml"}, budget={"usd": 1})
    with pytest.raises(PenstockError, match=r"budget\.usd = 1: no price is known"):
        made.plan(run_=run)


def test_bands_of_the_run_are_those_of_the_step_where_steps_are_the_run() -> None:
    long, short = made.plan(steps=100_000), made.plan(steps=1)
    wide, narrow = long.bands["days"], short.bands["days"]
    assert wide.high == pytest.approx(1.2, abs=0.02)
    assert narrow.high < 1.05  # starting and saving are most of it
    assert long.bands["tokens_per_s"] == Band(1 / 1.2, 1 / 0.9)
    assert long.bands["energy_kwh"].high > wide.high  # the power model errs too


@given(*[st.floats(0.3, 1.0)] * 2, *[st.floats(1.0, 3.0)] * 2)
@settings(deadline=None, max_examples=40)
def test_two_bands_together_are_wider_than_each_and_narrower_than_the_product(
    a: float, b: float, c: float, d: float
) -> None:
    made_ = product_band(Band(a, c), Band(b, d))
    assert a * b * (1 - 1e-9) <= made_.low <= min(a, b) * (1 + 1e-9)
    assert max(c, d) * (1 - 1e-9) <= made_.high <= c * d * (1 + 1e-9)


def test_failures_without_spares_are_pointed_out() -> None:
    job = made.job(64, Layout(shard=64), made.machine(64, node_mtbf_s=1e6))
    assert any("guard.spares" in line for line in made.plan(job, steps=100_000).warnings)
    spare = made.plan(job, made.run(guard={"spares": 1}), steps=100_000)
    assert not any("guard.spares" in line for line in spare.warnings)
