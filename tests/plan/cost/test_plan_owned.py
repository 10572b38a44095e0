"""Machines of one's own: every part by hand, bills that add up, and when owning pays."""

from dataclasses import replace
from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_plans as made
from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger
from penstock.plan.cost import cost
from penstock.plan.cost.break_even import break_even
from penstock.plan.cost.owned import HOURS_A_YEAR, OwnedCost, annuity, owned_cost
from penstock.plan.hardware.machine import Machine
from penstock.plan.power.power import plug_levels
from penstock.run.clusters.price import PriceSection

HOUR = 3600.0
KWH = 3.6e6
STATED = {
    "purchase": 300000,
    "network": 0.1,
    "years": 4,
    "residual": 0.2,
    "capital_per_year": 0.1,
    "maintenance_per_year": 0.05,
    "people": 0.2,
    "person_per_year": 200000,
    "colocation_per_kw_month": 150,
}


def price(used: float | None = 0.8, **owned: Any) -> PriceSection:
    table: dict[str, Any] = {"term": "owned", "owned": STATED | owned}
    return PriceSection.model_validate(table | ({} if used is None else {"utilisation": used}))


def machine(count: int = 16, **changed: Any) -> Machine:
    given = {"usd_per_kwh": 0.1, "pue": 1.25, "price": price()} | changed
    return made.machine(count, **given)


def own(**changed: Any) -> OwnedCost:
    on = machine(**changed)
    assert on.price is not None
    return owned_cost(on, on.price)


def test_every_part_by_hand() -> None:
    found, on = own(), machine()
    levels = plug_levels(on, "air")
    assert levels is not None
    busy_kw, rest_kw = levels[0].busy_w / 1e3, levels[0].rest_w / 1e3
    purchase = 2 * 300000 * 1.1
    by_name = {item.name: item.usd_per_year for item in found.items}
    assert found.purchase_usd == pytest.approx(purchase)
    assert by_name["depreciation"] == pytest.approx(0.8 * purchase / 4)
    # 660,000 USD now and 132,000 back in four years, at 10 %: 179,766 a year.
    yearly = (purchase - 0.2 * purchase / 1.1**4) * 0.1 / (1 - 1.1**-4)
    assert by_name["depreciation"] + by_name["capital"] == pytest.approx(yearly)
    assert by_name["maintenance"] == pytest.approx(33000)
    assert by_name["people"] == pytest.approx(40000)
    assert by_name["colocation"] == pytest.approx(12 * 150 * 16 * busy_kw)
    fixed = sum(by_name.values()) / HOURS_A_YEAR / 16
    at_rest = rest_kw * 1.25 * 0.1
    assert found.usd_per_hour == pytest.approx(fixed / 0.8 + 0.25 * at_rest)
    assert all(item.source and item.words for item in found.items)


def test_a_loan_without_interest_and_a_hall_of_one_s_own() -> None:
    assert annuity(100.0, 20.0, 0.0, 4.0) == pytest.approx(20.0)
    assert annuity(100.0, 0.0, 0.1, 1.0) == pytest.approx(110.0)
    rented = own()
    built = own(price=price(place="hall", hall_per_kw=10000, hall_years=15))
    kw = rented.items[-1].usd_per_year / 12 / 150
    assert rented.hall_usd == 0
    assert built.hall_usd == pytest.approx(10000 * kw)
    assert built.items[-1].usd_per_year == pytest.approx(annuity(10000 * kw, 0, 0.1, 15))


def test_what_is_left_out_is_the_catalog_s_with_its_source() -> None:
    bare = PriceSection.model_validate({"term": "owned"})
    found = own(price=bare)
    assert found.utilisation == 0.8
    for item in found.items:
        assert "catalog" in item.source, item
    assert "8 × H100" not in found.items[0].words
    assert 300e3 < found.node_usd < 360e3  # 8x H100 nodes: 300,000 to 350,000 USD


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"usd_per_kwh": None}, "needs a price of electricity"),
        ({"tdp_w": None}, "needs the power of H100"),
        ({"accelerator": "mine", "price": PriceSection(term="owned")}, "no purchase price of mine"),
    ],
)
def test_what_cannot_be_known_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(PenstockError, match=told):
        own(**changed)


def billed(on: Machine, busy_kwh: float = 100.0, waiting_kwh: float = 30.0) -> cost.Bill:
    seconds = {Cause.COMPUTE: 160 * HOUR, Cause.DATA_WAIT: 80 * HOUR}
    drawn = {Cause.COMPUTE: busy_kwh * KWH, Cause.DATA_WAIT: waiting_kwh * KWH}
    return cost.bill(made.run(cluster={"use": "own.toml"}), on, Ledger(seconds, drawn))


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
def test_the_causes_of_an_owned_bill_add_up(
    busy: float, waiting: float, used: float, kwh_usd: float
) -> None:
    on = machine(price=price(used), usd_per_kwh=kwh_usd)
    bill = billed(on, busy, waiting)
    assert on.price is not None
    hourly = owned_cost(on, on.price).usd_per_hour
    assert bill.usd == pytest.approx(240 * hourly + (busy + waiting) * 1.25 * kwh_usd)
    assert bill.ledger.usd is not None
    assert isclose(sum(bill.ledger.usd.values()), bill.usd or 0.0)


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(0.05, 1.0))
def test_cheaper_power_never_raises_the_cost(one: float, other: float, used: float) -> None:
    cheap, dear = sorted((one, other))
    low, high = (billed(machine(price=price(used), usd_per_kwh=at)).usd for at in (cheap, dear))
    assert low is not None
    assert high is not None
    assert low <= high * (1 + 1e-12)


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_more_use_never_makes_an_hour_dearer(one: float, other: float) -> None:
    rare, busy = sorted((one, other))
    assert own(price=price(busy)).usd_per_hour <= own(price=price(rare)).usd_per_hour * (1 + 1e-12)


@given(st.floats(0.5, 20.0), st.floats(0.05, 1.0))
def test_at_the_break_even_utilisation_owning_and_renting_cost_the_same(
    rent: float, used: float
) -> None:
    found = break_even(own(price=price(used)), rent, "made")
    if found.utilisation is None:
        always = own(price=price(1.0))
        assert always.usd_per_hour + always.busy_usd_per_hour > rent
        return
    there = own(price=price(found.utilisation))
    assert there.usd_per_hour + there.busy_usd_per_hour == pytest.approx(rent)
    assert (used >= found.utilisation) == (found.own_usd_per_hour <= rent * (1 + 1e-9))


def test_the_purchase_is_paid_back_when_the_rent_saved_has_reached_it() -> None:
    mine = own()
    found = break_even(mine, 4.0, "made")
    assert found.years is not None
    rented = 4.0 * 0.8 * HOURS_A_YEAR * 16
    assert found.years * (rented - mine.running_usd_per_year) == pytest.approx(mine.purchase_usd)
    assert break_even(mine, 0.5, "made").years is None
    dearer = break_even(mine, 5.0, "made")
    assert dearer.years is not None
    assert dearer.years < found.years


def test_a_reserved_hour_that_is_not_used_is_paid_for() -> None:
    terms = PriceSection.model_validate(
        {"term": "reserved", "usd_per_hour": 2.0, "utilisation": 0.5, "source": "a letter"}
    )
    on = replace(made.machine(8), usd_per_hour=2.0, price=terms)
    bill = billed(on)
    assert bill.usd == pytest.approx(240 * 4.0)
    assert "a letter" in bill.price
    assert "50 % of its hours used" in bill.price


def test_what_money_buys_counts_electricity_at_work() -> None:
    on, run = machine(), made.run(cluster={"use": "own.toml"})
    assert on.price is not None
    mine = owned_cost(on, on.price)
    price = cost.price_at_work(run, on)
    assert price is not None
    assert price.usd == pytest.approx(mine.usd_per_hour + mine.busy_usd_per_hour)
    rented = replace(made.machine(8), usd_per_hour=2.0)
    assert cost.price_at_work(run, rented) == cost.price_of(run, rented)


def test_a_plan_on_spot_says_what_it_does_not_count() -> None:
    terms = PriceSection.model_validate({"term": "spot", "usd_per_hour": 1.0})
    bill = billed(replace(made.machine(8), usd_per_hour=1.0, price=terms))
    assert any("penstock compare" in line for line in bill.warnings)
