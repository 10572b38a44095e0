"""The carbon of making accelerators: published figures alone, by the hours of a life, in no sum."""

import pytest

import made_plans as made
from penstock.catalog import facilities
from penstock.plan import screen
from penstock.plan.cost.embodied import embodied
from penstock.plan.hardware.machine import of_catalog

YEAR_H = 365.25 * 24


@pytest.mark.parametrize(
    ("name", "kg"), [("A100 SXM4 80GB", 318.0), ("A100 SXM4 40GB", 318.0), ("H100 SXM5", 164.0)]
)
def test_a_year_of_a_life_of_five_bears_a_fifth(name: str, kg: float) -> None:
    found = embodied(of_catalog(name, 8), 8 * YEAR_H)
    assert found is not None
    assert found.kg == pytest.approx(8 * kg / 5)
    row = facilities.embodied(name)
    assert row is not None
    for words in (row.source_of("typical"), "of 5 years", f"{kg:g} kg each", "not in the CO2e"):
        assert words in found.words


def test_what_nobody_published_is_left_out() -> None:
    for name in ("H200 SXM", "B200 SXM", "GB200", "RTX 4090"):
        assert embodied(of_catalog(name, 8), 1000.0) is None


def test_a_plan_states_it_apart_from_its_co2e() -> None:
    on = made.machine(16, pue=1.2, gco2e_per_kwh=300.0)
    plan = made.plan(made.job(16, on=on))
    bill = plan.bill
    assert bill.embodied is not None
    assert bill.co2e_kg == pytest.approx((bill.energy_kwh or 0) * 0.3)
    table = plan.to_json()
    assert table["embodied_co2e_kg"] == bill.embodied.kg
    hours = bill.ledger.total / 3600
    assert bill.embodied.kg == pytest.approx(hours / (5 * YEAR_H) * 164)
    assert "HGX H100" in plan.explain("embodied_co2e_kg")
    line = next(line for line in screen.lines(plan) if line.startswith("energy"))
    assert "CO2e; apart from it" in line
