"""Money and carbon: what the user gave wins, and nothing is invented."""

from math import isclose
from typing import Any

import pytest

import made_plans as made
from penstock.catalog import prices
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger
from penstock.plan.cost import cost
from penstock.plan.cost.cost import Bill

HOUR = 3600.0
KWH = 3.6e6


def billed(use: str = "site.toml", joules: bool = True, **given: Any) -> Bill:
    """100 accelerator-hours of compute and 25 of waiting, 10 and 2 kWh."""
    seconds = {Cause.COMPUTE: 100 * HOUR, Cause.DATA_WAIT: 25 * HOUR}
    drawn = {Cause.COMPUTE: 10 * KWH, Cause.DATA_WAIT: 2 * KWH} if joules else None
    machine = made.machine(**given)
    return cost.bill(made.run(cluster={"use": use}), machine, Ledger(seconds, drawn))


def test_the_user_s_price_wins_over_electricity_and_catalog() -> None:
    bill = billed(use="H100", usd_per_hour=2.0, usd_per_kwh=0.1)
    assert bill.usd == 250
    assert bill.ledger.usd is not None
    assert bill.ledger.usd[Cause.DATA_WAIT] == 50
    assert isclose(sum(bill.ledger.usd.values()), bill.usd)


def test_a_machine_named_from_the_catalog_has_its_dated_price() -> None:
    row = prices.of("H100")
    assert row is not None
    bill = billed(use="H100")
    assert bill.usd == pytest.approx(125 * row.usd_per_hour)
    assert "catalog" in bill.price
    assert row.as_of in bill.price


@pytest.mark.parametrize("use", ["here", "our.toml"])
def test_a_machine_that_may_be_owned_gets_no_market_price(use: str) -> None:
    bill = billed(use=use)
    assert bill.usd is None
    assert bill.ledger.usd is None
    assert any("cluster.usd_per_hour" in line for line in bill.warnings)


def test_electricity_alone_is_marked_and_follows_the_energy() -> None:
    bill = billed(usd_per_kwh=0.5, pue=1.5)
    assert bill.usd == pytest.approx(12 * 1.5 * 0.5)
    assert "electricity only" in bill.price
    assert bill.ledger.usd is not None
    assert bill.ledger.usd[Cause.DATA_WAIT] == pytest.approx(2 * 1.5 * 0.5)


def test_energy_has_the_pue_once_and_carbon_the_site() -> None:
    bill = billed(pue=1.25, gco2e_per_kwh=400)
    assert bill.energy_it_kwh == pytest.approx(12)
    assert bill.energy_kwh == pytest.approx(15)
    assert bill.co2e_kg == pytest.approx(6)
    assert bill.ledger.gco2e is not None
    assert sum(bill.ledger.gco2e.values()) == pytest.approx(6000)


def test_without_a_site_there_is_no_carbon_and_the_way_to_give_one() -> None:
    bill = billed()
    assert bill.co2e_kg is None
    assert bill.ledger.gco2e is None
    assert any("cluster.site" in line for line in bill.warnings)
    assert bill.energy_kwh == bill.energy_it_kwh
    assert "cooling not included" in bill.notes["energy_kwh"][0]


def test_without_power_there_is_no_energy_and_no_electricity_bill() -> None:
    bill = billed(joules=False, usd_per_kwh=0.5, gco2e_per_kwh=400)
    assert (bill.energy_kwh, bill.usd, bill.co2e_kg) == (None, None, None)
    assert any("tdp_w" in line for line in bill.warnings)
