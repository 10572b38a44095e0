"""`[price]` of a cluster file: amounts with their currency, and terms that cannot be mixed."""

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.plan.hardware.cluster import machine_of
from penstock.run.clusters.load import load_cluster, save_cluster
from penstock.run.clusters.price import Amount

HEAD = '[accelerator]\nname = "H100"\n'
OWNED = 'term = "owned"\n'


def loaded(folder: Path, price: str, site: str = ""):
    file = folder / "c.toml"
    file.write_text(f"{HEAD}[site]\n{site}\n[price]\n{price}\n")
    return load_cluster(file)


@pytest.mark.parametrize(
    ("said", "usd"),
    [("2.49", 2.49), ('"2.49 USD"', 2.49), ('"$ 2"', None), ('"2 $"', 2.0), ('"2 EUR"', 2.16)],
)
def test_an_amount_is_usd_or_has_a_currency_with_a_rate(tmp_path: Path, said: str, usd):
    text = f'usd_per_hour = {said}\nexchange = ["1 EUR = 1.08 USD"]'
    if usd is None:
        with pytest.raises(PenstockError, match="not an amount of money"):
            loaded(tmp_path, text)
        return
    price = loaded(tmp_path, text).price
    assert price.usd(price.usd_per_hour) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("price", "told"),
    [
        ('usd_per_hour = "249 cents"', 'price.usd_per_hour = "249 cents": an amount in cents'),
        ('usd_per_hour = "249 ct"', "an amount in cents"),
        ('usd_per_hour = "2.1 EUR"', '2.1 EUR without a rate; write exchange = ["1 EUR = … USD"]'),
        ('usd_per_hour = "2.1 euro"', "not an amount of money"),
        ("usd_per_hour = -1", "out of range"),
        ('usd_per_hour = 2\nexchange = ["EUR 1.08"]', "not a rate"),
        ('usd_per_hour = 2\nexchange = ["1 EUR = 0 USD"]', "worth nothing"),
        ('term = "owned"\n[price.owned]\npurchase = "300000 CHF"', "price.owned.purchase"),
        ('term = "spot"', 'price.usd_per_hour: missing; term = "spot" needs the price'),
        ('term = "lease"', "not a choice"),
        ("usd_per_hour = 2\navailable = 0.5", "price.available = 0.5: is of spot"),
        ("usd_per_hour = 2\nutilisation = 0.5", "is of reserved and owned machines"),
        ('usd_per_hour = 2\ncommitment = "365 days"', 'is of term = "reserved"'),
        ('term = "owned"\nusd_per_hour = 2', "owned machines have none"),
        ('term = "owned"\nutilisation = 0', "nothing; write more than 0"),
        ("usd_per_hour = 2\n[price.owned]\nyears = 4", 'needs term = "owned"'),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused(tmp_path: Path, price: str, told: str):
    with pytest.raises(PenstockError) as error:
        loaded(tmp_path, price)
    assert told in str(error.value)
    assert str(tmp_path / "c.toml") in str(error.value)


def test_a_price_in_cents_or_of_a_node_is_refused_where_the_catalog_knows_better(tmp_path: Path):
    for usd in (249, 31.8):
        with pytest.raises(PenstockError, match="Is it in cents, or of a whole node"):
            machine_of(loaded(tmp_path, f"usd_per_hour = {usd}"))
    assert machine_of(loaded(tmp_path, "usd_per_hour = 12")).usd_per_hour == 12
    assert machine_of(loaded(tmp_path, "usd_per_hour = 0")).usd_per_hour == 0
    with pytest.raises(PenstockError, match=r"Write USD: 0\.089"):
        loaded(tmp_path, "usd_per_hour = 2", "usd_per_kwh = 8.9")


def test_prices_are_written_back_as_they_were(tmp_path: Path):
    text = (
        'term = "owned"\nexchange = ["1 EUR = 1.08 USD"]\nutilisation = "80%"\n'
        'delivery = "56 days"\n[price.owned]\npurchase = "280000 EUR"\nperson_per_year = 90000'
    )
    file = loaded(tmp_path, text)
    save_cluster(file, tmp_path / "again.toml")
    again = load_cluster(tmp_path / "again.toml")
    assert again.price == file.price
    assert again.price.owned.purchase == Amount(280000, "EUR")
