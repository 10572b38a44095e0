"""The bill of a run by the hours of its site: each at its own price, pauses at what they draw."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger import joules as joule_spans
from penstock.ledger.causes import Cause
from penstock.ledger.joules import EnergySpans
from penstock.plan.cost.rates import CostRates, SourcedRate, hours_written
from penstock.policy.hours.sums import sums
from penstock.policy.hours.terms import HourSchedule, HourTerms, PowerLevel, Stretch
from penstock.run.hours import Hour, HourlyCurve
from penstock.watch.facts.advice import advice
from penstock.watch.facts.costs import Costs, costs_of, costs_with, left_rank_s
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.energy_amounts import EnergyByTime
from penstock.watch.facts.hourly import RunHours, bill_by_hours
from penstock.watch.facts.run_view import RunView
from written_run import PLAN, T, Written

J_PER_KWH = 3.6e6
HOUR_S = 3600.0
# T is 22:13:20 UTC: the run works to 22:14:06, pauses to 00:13:20 and works again.
DAY = HourlyCurve(
    tuple(
        Hour(usd_per_kwh=0.01 * (hour + 1), gco2e_per_kwh=10.0 * hour, market_gco2e_per_kwh=hour)
        for hour in range(24)
    ),
    "daily",
    source="hours.csv",
)


def run_of(
    where: Path, paused: str = "idle", rates: CostRates | None = None, **more: Any
) -> RunView:
    saved = {**(rates or CostRates()).to_json(), **hours_written(DAY)}
    written = Written(where, PLAN | {"rates": saved} | more)
    file = written.folder.run_file
    text = file.read_text()
    budget = f'hours_csv = "gone.csv"\nfinish_within = "3 days"\nhours_paused = "{paused}"\n'
    assert 'hours_paused = "idle"\n' in text
    file.write_text(text.replace('hours_paused = "idle"\n', budget))
    written.supervisor(
        (0.0, "invocation", {"ranks": 2}),
        (1.0, "launch", {"attempt": 0}),
        (46.0, "paused", {"until": T + 7200, "why": "paused"}),
        (7200.0, "pause_over", {}),
        (7201.0, "launch", {"attempt": 1}),
        (7250.0, "ended", {"result": "done", "error": ""}),
    )
    written.ranks(0, 1.0, range(1, 21))
    written.ranks(1, 7201.0, range(21, 41))
    written.end(1, 7250.0)
    return RunView(written.folder)


def test_each_hour_is_billed_at_its_own_price_and_both_kinds_of_carbon(tmp_path: Path) -> None:
    view = run_of(tmp_path)
    energy = energy_of(view)
    assert energy is not None
    by = energy.by_time
    assert by is not None
    # The hours hold the energy of the run, cause by cause.
    for cause, joules in zip(Cause, by.joules.sum(axis=0), strict=True):
        assert joules == pytest.approx(energy.by_cause[cause], abs=1e-6)
    assert by.paused.tolist() == [False, True, True, True, False]
    assert (by.end - by.start)[by.paused].sum() == pytest.approx(7200 - 46)
    found = costs_of(view)
    kwh = by.joules.sum(axis=1) / J_PER_KWH
    hours = [22, 22, 23, 0, 0]
    assert found.kwh == pytest.approx(kwh.sum())
    assert found.usd == pytest.approx(sum(kwh * [0.01 * (hour + 1) for hour in hours]))
    assert found.gco2e == pytest.approx(sum(kwh * [10.0 * hour for hour in hours]))
    assert found.market_gco2e == pytest.approx(sum(kwh * hours))
    assert found.usd_by_cause is not None
    assert sum(found.usd_by_cause.values()) == pytest.approx(found.usd)
    said = "\n".join(found.notes)
    for words in ("by the hours of hours.csv", "location-based", "market-based", "electricity"):
        assert words in said
    json.dumps(found.to_json(), allow_nan=False)
    (told,) = [one for one in advice(view) if one.cause is Cause.DOWN]
    assert "the run waited for hours" in told.words
    assert told.field is None  # nothing failed, so no way of recovery is advised


def test_machines_that_are_off_in_a_pause_cost_nothing_then(tmp_path: Path) -> None:
    view = run_of(tmp_path, "off")
    energy, found = energy_of(view), costs_of(view)
    assert energy is not None
    assert energy.by_time is not None
    own = ~energy.by_time.paused
    kwh = energy.by_time.joules.sum(axis=1)[own] / J_PER_KWH
    assert found.kwh == pytest.approx(kwh.sum())
    assert found.usd == pytest.approx(kwh @ [0.23, 0.01])
    assert found.kwh < energy.node_j.joules / J_PER_KWH
    assert any("of pauses are not counted" in note for note in found.notes)


def test_an_hour_on_some_accelerators_is_billed_with_what_they_and_the_others_drew(
    tmp_path: Path,
) -> None:
    joules, costs = {}, {}
    for count in (1, 2):
        (where := tmp_path / str(count)).mkdir()
        written = Written(run_of(where).folder.path.parents[1], None)
        rates = {**CostRates().to_json(), **hours_written(DAY)}
        written.folder.plan_file.write_text(json.dumps(PLAN | {"rates": rates}))
        budget = 'hours_csv = "gone.csv"\nfinish_within = "3 days"\nhours_paused = "idle"\n'
        text = written.folder.run_file.read_text().replace('hours_paused = "idle"\n', budget)
        written.folder.run_file.write_text(text)
        for file in written.folder.journal.iterdir():
            file.unlink()
        small = {"attempt": 1, "ranks": count, "of": 2, "why": "an hour"}
        written.supervisor(
            (0.0, "invocation", {"ranks": 2}),
            (1.0, "launch", {"attempt": 0, "ranks": 2}),
            (6400.0, "launch", {"attempt": 1, "ranks": count}),
            (6400.0, "resized", small),
            (6445.0, "ended", {"result": "done", "error": ""}),
        )
        written.ranks(0, 1.0, range(1, 21))
        written.ranks(1, 6400.0, range(21, 41), count=count)
        view = RunView(written.folder)
        energy, costs[count] = energy_of(view), costs_of(view)
        assert energy is not None
        assert energy.by_time is not None
        by = energy.by_time
        kwh = by.joules.sum(axis=1) / J_PER_KWH
        assert costs[count].kwh == pytest.approx(kwh.sum())
        hours = [DAY.at(float(t)).usd_per_kwh for t in by.start + 1e-3]
        assert costs[count].usd == pytest.approx(kwh @ hours)
        last = by.start >= T + 6400 - 1e-3  # the first 45 s of the hour from midnight
        joules[count] = dict(zip(Cause, by.joules[last].sum(axis=0).tolist(), strict=True))
        assert view.fewer_s == pytest.approx(45.0 if count == 1 else 0.0)
        # What is to go takes all ranks at their own pace, not at that of some of them.
        running = Written(written.folder.path.parents[1], None)
        text = (supervisor := running.folder.journal / "supervisor.events").read_text()
        supervisor.write_text("".join(text.splitlines(keepends=True)[:-1]))
        running.folder.plan_file.write_text(json.dumps(PLAN | {"rates": rates, "steps": 50}))
        view = RunView(running.folder)
        view.__dict__["step_s"] = 7.0 if count == 1 else 2.0
        assert left_rank_s(view) == pytest.approx(2 * 2.0 * (50 - 40))
    down, busy = joules[1][Cause.DOWN], joules[1][Cause.COMPUTE]
    assert joules[2][Cause.DOWN] == 0.0
    assert 0 < down < busy
    assert busy == pytest.approx(joules[2][Cause.COMPUTE] / 2)
    saved = sum(joules[2].values()) - sum(joules[1].values())
    assert costs[2].usd - costs[1].usd == pytest.approx(0.01 * saved / J_PER_KWH)


def test_electricity_apart_is_paid_by_the_hour_and_a_rent_has_it_in_it(tmp_path: Path) -> None:
    price, apart = SourcedRate(3.0, "given"), SourcedRate(9.0, "given")
    for folder in ("plain", "owned", "rented"):
        (tmp_path / folder).mkdir()
    plain = costs_of(run_of(tmp_path / "plain"))
    owned = costs_of(
        run_of(tmp_path / "owned", rates=CostRates(usd_per_hour=price, usd_per_kwh_apart=apart))
    )
    rented = costs_of(run_of(tmp_path / "rented", rates=CostRates(usd_per_hour=price)))
    assert plain.usd is not None
    assert rented.usd == pytest.approx(2 * 7250 / HOUR_S * 3.0)
    assert owned.usd == pytest.approx((rented.usd or 0) + plain.usd)


def test_a_column_that_the_file_lacks_is_taken_from_the_site(tmp_path: Path) -> None:
    rates = CostRates(gco2e_per_kwh=SourcedRate(400.0, "catalog"))
    cheap = replace(DAY, hours=tuple(Hour(usd_per_kwh=one.usd_per_kwh) for one in DAY.hours))
    plan = PLAN | {"rates": {**rates.to_json(), **hours_written(cheap)}}
    found: Costs = costs_of(_with_plan(run_of(tmp_path), plan))
    assert found.gco2e == pytest.approx((found.kwh or 0) * 400.0)
    assert found.market_gco2e is None


def _with_plan(view: RunView, plan: dict[str, Any]) -> RunView:
    view.folder.plan_file.write_text(json.dumps(plan))
    return RunView(view.folder)


def test_a_journal_with_another_clock_is_billed_by_that_of_its_hours(tmp_path: Path) -> None:
    view = run_of(tmp_path)
    later = PLAN | {"rates": {**CostRates().to_json(), **hours_written(DAY, 3 * HOUR_S)}}
    first, energy = costs_of(view), energy_of(view)
    second = costs_of(_with_plan(view, later))
    assert energy is not None
    assert energy.by_time is not None
    kwh = energy.by_time.joules.sum(axis=1) / J_PER_KWH
    assert second.usd == pytest.approx(kwh @ [0.02, 0.02, 0.03, 0.04, 0.04])
    assert first.usd != second.usd


def test_a_run_without_hours_is_billed_as_before(tmp_path: Path) -> None:
    view = run_of(tmp_path)
    view.folder.run_file.write_text(
        "\n".join(
            line
            for line in view.folder.run_file.read_text().splitlines()
            if not line.startswith(("hours_csv", "finish_within"))
        )
    )
    plain = RunView(view.folder)
    energy = energy_of(plain)
    assert energy is not None
    assert energy.by_time is None
    assert costs_with(plain, energy).usd is None


watts = st.floats(1.0, 1e6)


@given(
    st.lists(st.tuples(st.floats(60.0, 2e5), st.booleans(), watts), min_size=1, max_size=8),
    st.floats(0, 2e5),
    st.floats(1.0, 2.0),
)
def test_report_and_plan_bill_the_same_hours_alike(parts, begin, pue):
    """A schedule as the plan adds it up, and a run that drew just that."""
    curve = replace(DAY, hours=tuple(replace(one, onsite_w=4e4) for one in DAY.hours))
    levels = tuple(PowerLevel(8, 1.0, w) for _, _, w in parts)
    terms = HourTerms(levels, parts[0][2], 0.0)
    ends = (T + begin + np.cumsum([length for length, _, _ in parts])).tolist()
    starts = [T + begin, *ends[:-1]]
    stretches = tuple(
        Stretch(start, end, None if waits else i)
        for i, (start, end, (_, waits, _)) in enumerate(zip(starts, ends, parts, strict=True))
    )
    planned = sums(HourSchedule(stretches, ends[-1], late=False), terms, curve)
    drew = [terms.paused_w if one.level is None else levels[one.level].watts for one in stretches]
    lengths = np.array([one.length_s for one in stretches])
    joules = np.zeros((len(parts), len(Cause)))
    joules[:, 0] = 0.25 * np.array(drew) * lengths / pue
    joules[:, 1] = 0.75 * np.array(drew) * lengths / pue
    used = EnergyByTime(
        np.array(starts), np.array(ends), np.array([one.level is None for one in stretches]), joules
    )
    bill = bill_by_hours(used, RunHours(curve, 0.0, off=False), pue)
    assert sum(bill.kwh.values()) == pytest.approx(planned.grid_kwh + planned.onsite_kwh)
    assert bill.paused_kwh == pytest.approx(planned.paused_kwh)
    for found, expected in (
        (bill.usd, planned.usd),
        (bill.gco2e, planned.gco2e),
        (bill.market_gco2e, planned.market_gco2e),
    ):
        assert found is not None
        assert sum(found.values()) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=6),
    st.lists(st.floats(-10, 160), max_size=6, unique=True),
)
def test_cut_spans_keep_their_joules_and_cross_no_cut(made, cuts):
    start = np.array([a for a, _ in made])
    end = start + np.array([b for _, b in made])
    spans = EnergySpans(start, end, 7.0 * (end - start), np.ones(len(made), bool))
    found = joule_spans.cut_at(spans, np.array(sorted(cuts)))
    assert found.total_j == pytest.approx(spans.total_j)
    assert found.seconds.sum() == pytest.approx(spans.seconds.sum())
    for cut in cuts:
        assert not ((found.start < cut) & (found.end > cut)).any()
    assert found.joules == pytest.approx(7.0 * found.seconds)
