"""Plans by the hour: what they save, what that costs in time, and what they refuse."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import made_plans as made
from penstock.catalog.models import preset
from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan import screen
from penstock.plan.hours import picture
from penstock.plan.hours.supply import read_begin
from penstock.plan.hours.terms import smaller_layouts, terms_from_json, terms_to_json
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.plan import Plan

NOW = datetime(2026, 11, 18, 6, tzinfo=UTC).timestamp()
HEAD = "hour,usd_per_kwh,gco2e_per_kwh,market_gco2e_per_kwh"
# Nearly free at night, dear by day.
NIGHT = [f"{hour},{0.01 if hour < 8 else 0.40},{50 if hour < 8 else 500},0" for hour in range(24)]
DAY_S = 86400.0


def planned(
    folder: Path,
    rows: list[str] = NIGHT,
    head: str = HEAD,
    within: str = "30 days",
    by: str | None = None,
    paused: str = "off",
    **more: Any,
) -> Plan:
    path = folder / "hours.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    budget = {"hours_csv": str(path), "finish_within": within, "hours_paused": paused}
    budget |= {"hours_by": by} if by else {}
    job = made.job(8, on=made.machine(8, **more))
    run = made.run(budget=budget, train={"tokens": "20B", "batch_tokens": 128 * 8192})
    return made.plan(job, run, begins_s=NOW)


def test_a_run_goes_into_cheap_hours_and_says_what_it_does_to_cost_and_date(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    plain = made.plan(made.job(8), made.run(train={"tokens": "20B", "batch_tokens": 128 * 8192}))
    hours = plan.hours
    assert hours is not None
    now, before = hours.sums, hours.straight_sums
    assert now is not None
    assert before is not None
    assert (now.usd or inf) < 0.6 * (before.usd or 0)
    assert hours.waits >= 2
    assert hours.schedule.finish_s <= hours.deadline_s
    # Time, ledger and energy of the plan have the pauses in them.
    assert plan.life.wall_s == pytest.approx(hours.schedule.finish_s - NOW)
    assert hours.later_s() == pytest.approx(plan.life.wall_s - plain.life.wall_s)
    longer = plan.bill.ledger.seconds[Cause.DOWN] - plain.bill.ledger.seconds[Cause.DOWN]
    assert longer == pytest.approx(8 * hours.later_s())
    for cause in set(Cause) - {Cause.DOWN}:
        assert plan.bill.ledger.seconds[cause] == plain.bill.ledger.seconds[cause]
    assert plan.bill.energy_kwh == pytest.approx(now.grid_kwh, rel=0.01)
    line = next(line for line in screen.lines(plan) if line.startswith("hours"))
    for words in ("paused", "pauses; ends 2026-", "later", "electricity", "CO2e by contracts 0 g"):
        assert words in line


def test_the_bill_is_that_of_the_hours_and_carbon_is_kept_apart(tmp_path: Path) -> None:
    plan = planned(tmp_path, gco2e_per_kwh=999.0, usd_per_kwh=9.0)
    found = plan.hours.sums if plan.hours else None
    assert found is not None
    assert plan.bill.co2e_kg == pytest.approx((found.gco2e or 0) / 1000)
    assert found.market_gco2e == 0.0
    own = made.plan(made.job(8), made.run(cluster={"use": "here"}))
    assert own.hours is None
    # A machine that is paid by the hour is billed by the hour, and a note says what pauses cost.
    assert plan.bill.price.endswith("catalog, on-demand, 2026-08)")
    assert any("paid by the hour" in note and "USD of rent" in note for note in plan.warnings)


def test_json_has_all_of_it_and_every_number_explains_itself(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    table = json.loads(json.dumps(plan.to_json()))["hours"]
    assert table["by"] == "cost"
    assert table["pauses"] == len([one for one in table["stretches"] if not one["accelerators"]])
    assert table["amounts"]["usd"] < table["without"]["amounts"]["usd"]
    assert table["finish_s"] - table["without"]["finish_s"] == pytest.approx(table["later_s"])
    assert plan.hours is not None
    assert terms_from_json(table["terms"]) == plan.hours.terms
    assert terms_to_json(plan.hours.terms) == table["terms"]
    assert "hours.csv" in plan.explain("hours")


def test_clean_hours_are_not_cheap_hours(tmp_path: Path) -> None:
    rows = [f"{h},{0.01 if h < 12 else 0.4},{500 if h < 12 else 5},0" for h in range(24)]
    cheap, clean = (planned(tmp_path, rows, by=by).hours for by in ("cost", "carbon"))
    assert cheap is not None
    assert clean is not None
    assert (clean.sums.gco2e or 0) < (cheap.sums.gco2e or 0)  # type: ignore[union-attr]
    assert (cheap.sums.usd or 0) < (clean.sums.usd or 0)  # type: ignore[union-attr]


def test_a_plan_that_cannot_end_in_time_is_over_budget(tmp_path: Path) -> None:
    late = planned(tmp_path, within="2 h")
    assert any("budget.finish_within = 2 h: " in line for line in late.over_budget)
    assert late.hours is not None
    assert not late.hours.schedule.pauses
    dark = planned(tmp_path, [f"{h},0.1,100" for h in range(24)], "hour,usd_per_kwh,grid_limit_w")
    assert any("no hour has the power" in line for line in dark.over_budget)
    assert "no hour has the power" in "\n".join(screen.lines(dark))
    with pytest.raises(PenstockError, match="picture: no hour has the power"):
        picture.svg("made", dark.hours)  # type: ignore[arg-type]


def test_a_grid_limit_shrinks_the_run_where_the_model_fits_on_fewer(tmp_path: Path) -> None:
    layout = Layout(replicate=4, shard=4, microbatch=1)
    job = replace(made.job(16, layout, made.machine(16)), shape=preset("llama-1b"))
    small = smaller_layouts(made.run(), job)
    assert {layout.ranks for layout, _ in small.layouts} == {12, 8, 4}
    assert all(0 < speed < 1 for _, speed in small.layouts)
    assert not small.none
    path = tmp_path / "hours.csv"
    limits = [20_000 if hour < 12 else 14_000 for hour in range(24)]
    rows = [f"{hour},0.1,{limit}" for hour, limit in enumerate(limits)]
    path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")
    # Too little for pauses alone in the half of each day that has less power.
    within = f"{1.4 * made.plan(job, steps=20_000).life.wall_s} s"
    run = made.run(budget={"hours_csv": str(path), "finish_within": within})
    plan = made.plan(job, run, begins_s=NOW, steps=20_000)
    hours = plan.hours
    assert hours is not None
    assert not any("pauses in them" in note for note in plan.warnings)
    levels = hours.terms.levels
    assert levels[0].needs_w > 14_000
    # A step draws more than the mean of a life, in which ranks also start and wait.
    assert all(level.step_w > level.watts for level in levels)
    used = {one.level for one in hours.schedule.stretches}
    assert len(used) > 1
    for one in hours.schedule.stretches:
        if one.level is not None and hours.curve.at(one.start_s + 1).grid_limit_w == 14_000:
            assert levels[one.level].needs_w <= 14_000


def limited_plan(folder: Path, job: Job, limit_w: float, **of_run: Any) -> Plan:
    """The plan of a run whose afternoons have less power, and all the time it wants."""
    path = folder / "hours.csv"
    rows = [f"{hour},0.1,{1e6 if hour < 12 else limit_w}" for hour in range(24)]
    path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")
    run = made.run(budget={"hours_csv": str(path), "finish_within": "9 days"}, **of_run)
    return made.plan(job, run, begins_s=NOW, steps=20_000)


def test_a_layout_that_cannot_shrink_pauses_and_the_plan_says_why(tmp_path: Path) -> None:
    one = preset("llama-1b")
    cut = Layout(replicate=1, shard=1, tensor=4, pipeline=4)
    for layout, of_run, why in (
        (cut, {}, "one data-parallel way, and the others stay"),
        (
            Layout(replicate=4, shard=4),
            {
                "train": {"tokens": "1B", "sync": {"local_steps": 8}},
                "layout": {"replicate": 4, "shard": 4},
            },
            "train.sync.local_steps = 8: what is learned depends on the number of replicas",
        ),
        (
            Layout(replicate=2, shard=8),
            {"guard": {"mode": "live"}},
            'guard.mode = "live": replicas go on without a lost one',
        ),
    ):
        job = replace(made.job(16, layout, made.machine(16)), shape=one)
        plan = limited_plan(tmp_path, job, 14_000, **of_run)
        assert plan.hours is not None
        assert plan.hours.schedule.pauses
        told = [note for note in plan.warnings if "the run pauses in them" in note]
        assert told == list(plan.hours.power_notes())
        assert why in told[0]
        assert "12 of 24 hours have too little power for all 16" in told[0]
        assert plan.to_json()["hours"]["notes"] == told


def test_machines_that_pause_may_draw_more_than_an_hour_has(tmp_path: Path) -> None:
    job = replace(made.job(16, Layout(replicate=4, shard=4), made.machine(16)))
    job = replace(job, shape=preset("llama-1b"))
    plan = limited_plan(tmp_path, job, 10.0)
    assert any("machines that pause stay on and draw" in note for note in plan.warnings)
    assert not any("pauses in them" in note for note in plan.warnings)


def test_columns_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r'hours_by = "carbon": .* no column gco2e_per_kwh'):
        planned(tmp_path, [f"{h},0.1" for h in range(24)], "hour,usd_per_kwh", by="carbon")
    limit = [f"{h},0.1,1000" for h in range(24)]
    with pytest.raises(PenstockError, match="grid_limit_w cannot be kept, because the power"):
        planned(tmp_path, limit, "hour,usd_per_kwh,grid_limit_w", tdp_w=None)
    unmetered = planned(tmp_path, tdp_w=None)
    assert unmetered.hours is not None
    assert unmetered.hours.sums is None
    assert any("the power of the machine is not known" in note for note in unmetered.warnings)


def test_hours_beyond_the_file_are_said(tmp_path: Path) -> None:
    rows = [f"2026-11-18T{h:02}:00,{0.01 if h < 8 else 0.4}" for h in range(24)]
    plan = planned(tmp_path, rows, "hour,usd_per_kwh", within="3 days")
    assert any("does not have all hours until 2026-11-2" in note for note in plan.warnings)


def test_no_pause_that_pays_is_said(tmp_path: Path) -> None:
    rows = [f"{h},{0.1 + h / 1000}" for h in range(24)]
    plan = planned(tmp_path, rows, "hour,usd_per_kwh", paused="idle")
    assert any("no pause pays. Machines that pause stay on" in note for note in plan.warnings)


def test_machines_that_stay_on_are_paid_for_while_they_pause(tmp_path: Path) -> None:
    rows = [f"{h},{0.40 if 16 <= h < 20 else 0.01}" for h in range(24)]
    plan = planned(tmp_path, rows, "hour,usd_per_kwh", paused="idle")
    found = plan.hours.sums if plan.hours else None
    assert found is not None
    assert found.paused_kwh > 0
    assert plan.bill.energy_kwh == pytest.approx(found.grid_kwh, rel=0.01)


def test_the_picture_is_a_drawing_of_all_stretches(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.hours is not None
    drawn = picture.svg("made & drawn", plan.hours)
    root = ElementTree.fromstring(drawn)
    bars = [one for one in root.iter() if one.tag.endswith("rect") and one.get("class") != "back"]
    working = [one for one in plan.hours.schedule.stretches if one.level is not None]
    assert len(bars) >= len(working)
    assert all(float(one.get("height", "-1")) >= 0 for one in bars)
    assert "made &amp; drawn" in drawn


def test_the_begin_of_a_plan_is_read_in_the_zone_of_the_hours() -> None:
    assert read_begin("2026-11-18T07:00", "Europe/Berlin") == NOW
    assert read_begin("2026-11-18T06:00+00:00", "Europe/Berlin") == NOW
    with pytest.raises(PenstockError, match="soon: not a moment"):
        read_begin("soon", "UTC")
