"""The costs of a run by time and by energy, so far and to go; none without a price."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_probe import probed
from penstock.catalog import sites
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger
from penstock.plan.cost.rates import CostRates, SourcedRate
from penstock.run.clusters.load import save_cluster
from penstock.run.clusters.price import Amount
from penstock.watch.facts.costs import Costs, costs_of, costs_with
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.rates import rates_of
from penstock.watch.facts.run_view import RunView
from written_run import PLAN, Written

END_S = 46.0  # 1 s to launch, 5 to be ready, 20 steps of 2 s
J_PER_KWH = 3.6e6
GIVEN = SourcedRate(3.0, "given in the run file")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run_of(
    where: Path,
    rates: CostRates = CostRates(),  # noqa: B008 (frozen)
    steps: int = 20,
    result: str = "done",
    seen: str = "a machine",
    cluster: str = "",
    **plan: Any,
) -> RunView:
    written = Written(where, PLAN | {"rates": {**rates.to_json(), "seen": seen}} | plan)
    if cluster:
        file = written.folder.run_file
        file.write_text(file.read_text().replace('use = "here"', cluster))
    written.supervisor(
        (0.0, "invocation", {"ranks": 2}),
        (1.0, "launch", {"attempt": 0}),
        (END_S, "ended", {"result": result, "error": ""}),
    )
    written.ranks(0, 1.0, range(1, steps + 1))
    written.end(0, END_S, result=result)
    return RunView(written.folder)


def checked(view: RunView) -> Costs:
    """What holds for every run: parts add up, JSON is plain, the ledger says the same."""
    found = costs_of(view)
    json.dumps(found.to_json(), allow_nan=False)
    ledger = costs_of(view).ledger
    assert ledger.seconds == view.account.ledger.seconds
    for total, parts, quantity in (
        (found.usd, found.usd_by_cause, "usd"),
        (found.gco2e, found.gco2e_by_cause, "gco2e"),
    ):
        if total is None:
            assert parts is None
            assert ledger.amounts(quantity) is None  # type: ignore[arg-type]
            assert ledger.provenance[quantity].source == "unknown"  # type: ignore[index]
        else:
            assert parts is not None
            assert sum(parts.values()) == pytest.approx(total)
            assert ledger.sum(quantity) == pytest.approx(total)  # type: ignore[arg-type]
            assert ledger.provenance[quantity].note  # type: ignore[index]
    assert Ledger.from_json(ledger.to_json()) == ledger
    return found


def test_without_a_price_and_a_site_there_is_energy_and_no_more(tmp_path: Path) -> None:
    found = checked(run_of(tmp_path))
    assert (found.usd, found.usd_to_go, found.gco2e, found.gco2e_to_go) == (None,) * 4
    assert found.kwh is not None
    said = " ".join(found.notes)
    for word in ("cluster.usd_per_hour", "cluster.site", "cluster.carbon", "no PUE"):
        assert word in said


def test_usd_are_hours_times_the_price_by_cause(tmp_path: Path) -> None:
    view = run_of(tmp_path, CostRates(usd_per_hour=GIVEN))
    found = checked(view)
    assert found.usd == pytest.approx(2 * END_S / 3600 * 3.0)
    assert found.usd_to_go == 0.0
    assert found.usd_by_cause is not None
    assert found.usd_by_cause[Cause.COMPUTE] == pytest.approx(2 * 20 * 1.5 / 3600 * 3.0)
    assert found.notes[0].endswith("accelerator-hours × 3 USD (given in the run file)")
    assert costs_of(view).ledger.provenance["usd"].source == "measured"


def test_machines_of_one_s_own_pay_their_electricity_apart(tmp_path: Path) -> None:
    power = SourcedRate(0.5, "given in the cluster file")
    rates = CostRates(usd_per_hour=GIVEN, usd_per_kwh_apart=power, usd_per_kwh=power)
    found = checked(run_of(tmp_path, rates))
    assert found.kwh is not None
    assert found.usd == pytest.approx(2 * END_S / 3600 * 3.0 + found.kwh * 0.5)
    assert "electricity" in found.notes[0]


def test_a_price_written_later_is_all_that_counts(tmp_path: Path) -> None:
    rates = CostRates(usd_per_hour=GIVEN, usd_per_kwh_apart=SourcedRate(0.5, "then"))
    file = tmp_path / "rented.toml"
    file.write_text('[accelerator]\nname = "H100"\n[price]\nusd_per_hour = 1.0\n')
    found = checked(run_of(tmp_path, rates, cluster=f'use = "{file}"'))
    assert found.usd == pytest.approx(2 * END_S / 3600 * 1.0)


def test_a_price_of_the_catalog_is_a_published_one(tmp_path: Path) -> None:
    view = run_of(tmp_path, CostRates(usd_per_hour=SourcedRate(2.0, "catalog, on-demand, 2026-08")))
    assert costs_of(view).ledger.provenance["usd"].source == "published"
    assert "2026-08" in costs_of(view).notes[0]


def test_carbon_is_energy_times_pue_times_the_factor_with_its_year(tmp_path: Path) -> None:
    rates = CostRates(
        pue=SourcedRate(1.5, "given"),
        gco2e_per_kwh=SourcedRate(400.0, "catalog: us-east-1 in 2024, GSF"),
    )
    view = run_of(tmp_path, rates)
    energy, found = energy_of(view), checked(view)
    assert energy is not None
    assert found.kwh == pytest.approx(energy.node_j.joules * 1.5 / J_PER_KWH)
    assert found.gco2e == pytest.approx(energy.node_j.joules * 1.5 / J_PER_KWH * 400)
    assert found.gco2e_by_cause is not None
    share = energy.by_cause[Cause.COMPUTE] / energy.node_j.joules
    assert found.gco2e_by_cause[Cause.COMPUTE] == pytest.approx(share * (found.gco2e or 0))
    assert "400 gCO2e per kWh (catalog: us-east-1 in 2024, GSF)" in found.notes[1]
    assert "PUE 1.5" in found.notes[1]
    assert found.usd is None
    assert costs_of(view).ledger.sum("joules") == pytest.approx(energy.node_j.joules)  # before PUE


def test_without_an_hourly_price_the_cost_is_electricity_and_says_so(tmp_path: Path) -> None:
    rates = CostRates(usd_per_kwh=SourcedRate(0.2, "catalog: US-TX in 2024, EIA"))
    found = checked(run_of(tmp_path, rates))
    assert found.usd == pytest.approx(0.2 * (found.kwh or 0))
    assert "electricity only" in found.notes[0]
    both = CostRates(usd_per_kwh=SourcedRate(0.2, "here"), usd_per_hour=GIVEN)
    (tmp_path / "b").mkdir()
    assert "electricity" not in checked(run_of(tmp_path / "b", both)).notes[0]


def test_remaining_costs_follow_the_pace_of_the_run(tmp_path: Path) -> None:
    rates = CostRates(usd_per_hour=GIVEN, gco2e_per_kwh=SourcedRate(400.0, "given"))
    view = run_of(tmp_path, rates, steps=10, result="stopped")
    found, energy = checked(view), energy_of(view)
    left_s = 10 * 2.0 * 2  # steps × seconds × ranks
    assert found.usd_to_go == pytest.approx(left_s / 3600 * 3.0)
    assert energy is not None
    # As the work so far: the quiet start does not come again.
    seconds = view.account.ledger.seconds
    working = [c for c in Cause if c not in (Cause.STARTUP, Cause.DOWN)]
    watts = sum(energy.by_cause[c] for c in working) / sum(seconds[c] for c in working)
    assert found.gco2e_to_go == pytest.approx(left_s * watts / J_PER_KWH * 400)


def test_before_the_first_step_the_pace_is_that_of_the_plan(tmp_path: Path) -> None:
    rates = CostRates(usd_per_hour=GIVEN)
    view = run_of(tmp_path, rates, steps=0, result="stopped", predicted={"step_s": 5.0})
    assert checked(view).usd_to_go == pytest.approx(20 * 5.0 * 2 / 3600 * 3.0)
    (tmp_path / "b").mkdir()
    assert checked(run_of(tmp_path / "b", rates, steps=0, result="stopped")).usd_to_go is None


def test_remaining_costs_include_planned_time_beside_the_steps(tmp_path: Path) -> None:
    whole = Ledger.of(compute=90.0, data_wait=10.0, evaluate=30.0, redo=20.0, startup=500.0)
    planned = {"step_s": 5.0, "ledger": whole.to_json()}
    view = run_of(
        tmp_path, CostRates(usd_per_hour=GIVEN), steps=10, result="stopped", predicted=planned
    )
    assert checked(view).usd_to_go == pytest.approx(10 * 2.0 * 2 * 1.5 / 3600 * 3.0)


def test_an_empty_run_costs_nothing_and_does_not_fail(tmp_path: Path) -> None:
    written = Written(tmp_path, None)
    found = costs_of(RunView(written.folder))
    assert found.usd is None
    assert found.gco2e is None
    json.dumps(found.to_json(), allow_nan=False)


def test_energy_that_is_not_known_leaves_carbon_out(tmp_path: Path) -> None:
    rates = CostRates(usd_per_hour=GIVEN, gco2e_per_kwh=SourcedRate(400.0, "given"))
    found = costs_with(run_of(tmp_path, rates), None)
    assert found.usd is not None
    assert (found.gco2e, found.kwh) == (None, None)
    assert "energy of this machine is not known" in found.notes[1]
    assert found.ledger.provenance["gco2e"].source == "unknown"


def test_a_cluster_file_that_was_changed_later_wins(tmp_path: Path) -> None:
    cluster = tmp_path / "mine.toml"
    cluster.write_text(
        '[accelerator]\nname = "H100"\n[price]\nusd_per_hour = 2\n[site]\nname = "us-east-1"\n'
    )
    then = CostRates(
        usd_per_hour=SourcedRate(9.0, "cluster file mine"), pue=SourcedRate(2.0, "long ago")
    )
    view = run_of(tmp_path, then, cluster=f'use = "{cluster}"')
    place = sites.find("us-east-1")
    rates = rates_of(view)
    assert rates.usd_per_hour == SourcedRate(2.0, "cluster file mine")
    assert rates.gco2e_per_kwh is not None
    assert rates.gco2e_per_kwh.value == place.carbon_gco2_per_kwh
    assert f"us-east-1 in {place.carbon_year}" in rates.gco2e_per_kwh.source
    cluster.unlink()
    assert rates_of(view).usd_per_hour == SourcedRate(9.0, "cluster file mine")
    assert rates_of(view).pue == SourcedRate(2.0, "long ago")


def test_the_run_files_own_price_and_carbon_win(tmp_path: Path) -> None:
    cluster = tmp_path / "mine.toml"
    cluster.write_text('[accelerator]\nname = "H100"\n[price]\nusd_per_hour = 2\n')
    own = f'use = "{cluster}"\nusd_per_hour = 5\nsite = "us-east-1"\ncarbon = 10'
    rates = rates_of(run_of(tmp_path, cluster=own))
    assert rates.usd_per_hour == SourcedRate(5.0, "given in the run file")
    assert rates.gco2e_per_kwh == SourcedRate(10.0, "given in the run file")


def test_this_machines_file_counts_for_runs_of_this_machine(tmp_path: Path, home: Path) -> None:
    file = probed("a machine")
    priced = file.model_copy(
        update={"price": file.price.model_copy(update={"usd_per_hour": Amount(0.5)})}
    )
    save_cluster(priced, home / "clusters" / "here.toml")
    mine = rates_of(run_of(tmp_path, seen="a machine")).usd_per_hour
    assert mine == SourcedRate(0.5, "cluster file here")  # written by a person, not measured
    (tmp_path / "b").mkdir()
    assert rates_of(run_of(tmp_path / "b", seen="another")).usd_per_hour is None


@pytest.mark.parametrize(
    "damaged",
    [None, 3, "x", [], {"usd_per_hour": 3}, {"usd_per_hour": {"value": -1, "source": "x"}}],
)
def test_rates_that_cannot_be_read_are_none(tmp_path: Path, damaged: object) -> None:
    view = run_of(tmp_path)
    view.folder.plan_file.write_text(json.dumps(PLAN | {"rates": damaged}))
    assert rates_of(view) == CostRates()
    assert checked(view).usd is None


factors = st.none() | st.builds(SourcedRate, st.floats(0, 1e6), st.text(max_size=20))


@given(factors, factors, factors, factors)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_rates_give_all_or_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    hour: SourcedRate | None,
    kwh: SourcedRate | None,
    pue: SourcedRate | None,
    carbon: SourcedRate | None,
) -> None:
    rates = CostRates(hour, kwh, pue, carbon)
    assert CostRates.from_json(json.loads(json.dumps(rates.to_json()))) == rates
    found = checked(run_of(tmp_path_factory.mktemp("any"), rates, steps=10, result="stopped"))
    assert (found.usd is None) == (hour is None and kwh is None)
    assert (found.gco2e is None) == (carbon is None)
    assert (found.usd_to_go is None) == (found.usd is None)


def test_energy_and_costs_use_the_same_pue(tmp_path: Path) -> None:
    """Also of two runs on one machine that stand in two places, in one process."""
    for name, pue in (("a", 1.5), ("b", 1.1)):
        (tmp_path / name).mkdir()
        view = run_of(tmp_path / name, CostRates(pue=SourcedRate(pue, "given")))
        energy = energy_of(view)
        assert energy is not None
        assert energy.facility_j is not None
        assert energy.facility_j.joules == pytest.approx(pue * energy.node_j.joules)
        assert energy.facility_j.joules / J_PER_KWH == pytest.approx(costs_of(view).kwh)


def test_making_the_accelerators_is_stated_apart_where_it_is_published(tmp_path: Path) -> None:
    rates = CostRates(pue=SourcedRate(1.2, "given"), gco2e_per_kwh=SourcedRate(100.0, "given"))
    found = checked(run_of(tmp_path, rates, device="cuda", device_name="NVIDIA H100 80GB HBM3"))
    assert found.embodied_gco2e == pytest.approx(2 * END_S / 3600 / (5 * 8766) * 164e3)
    assert found.gco2e == pytest.approx((found.kwh or 0) * 100)  # electricity alone
    assert any("HGX H100" in note and "not in the CO2e" in note for note in found.notes)
    (tmp_path / "other").mkdir()
    other = checked(run_of(tmp_path / "other", rates, device="cuda", device_name="NVIDIA H200"))
    assert other.embodied_gco2e is None
