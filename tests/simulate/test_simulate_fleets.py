"""Rates of fleets: a wide band for an unknown one, narrowed by what is known."""

import numpy as np
import pytest

from penstock.catalog import failures
from penstock.errors import PenstockError
from penstock.plan.life.rates import DAY_S, software_at
from penstock.simulate.draws import generator
from penstock.simulate.fleets import PER, Seen, model

ROWS = failures.measured("per_1000_node_days")


def band(values: list[float]) -> tuple[float, float]:
    low, high = np.percentile(values, (5, 95))
    return float(low), float(high)


def test_the_other_fleets_cover_six_of_seven_in_a_band_of_sixteen_times() -> None:
    covered = 0
    for row in ROWS:
        drawn = model(without=(row.name,)).draw(generator(0, 0), 4000)
        low, high = band([rates.node * PER for rates in drawn])
        covered += low <= row.value <= high
        assert high / low < 16
        assert row.value / PER not in model(without=(row.name,)).node
    assert covered >= 6


def test_an_unknown_fleet_is_told_and_a_stated_rate_is_exact() -> None:
    assert model().wide
    assert "2.34 to 21" in model().source
    stated = model(node_mtbf_s=100 * DAY_S, software_mtbf_s=DAY_S)
    assert not stated.wide
    assert {rates.node for rates in stated.draw(generator(0, 0), 9)} == {1 / (100 * DAY_S)}
    assert {rates.software for rates in stated.draw(generator(0, 0), 9)} == {1 / DAY_S}
    (named,) = model(fleet="Meta RSC-1").node
    assert named * PER == pytest.approx(6.5)


def test_journals_of_the_cluster_narrow_the_band() -> None:
    node_s = 10_000 * DAY_S
    seen = Seen(hardware=120, node_s=node_s, software=5, run_s=30 * DAY_S)
    wide = band([r.node * PER for r in model().draw(generator(0, 0), 2000)])
    low, high = band([r.node * PER for r in model(seen=seen).draw(generator(0, 0), 2000)])
    assert wide[0] < low < 12 < high < wide[1]
    assert high / low < 2
    assert not model(seen=seen).wide


def test_journals_of_a_cluster_unlike_all_published_ones_decide_alone() -> None:
    """Fifty failures in an hour, as in a drill: no fleet comes near it."""
    seen = Seen(hardware=0, node_s=3600.0, software=50, run_s=3600.0)
    drawn = model(seen=seen).draw(generator(0, 0), 2000)
    rates = np.array([rates.software for rates in drawn]) * 3600
    assert rates.mean() == pytest.approx(50, rel=0.05)
    assert rates.std() == pytest.approx(50**0.5, rel=0.1)
    # An hour says nothing of the hardware.
    low, high = band([one.node * PER for one in drawn])
    assert high / low > 8


def test_a_life_has_its_rates_however_many_lives_there_are() -> None:
    assert model().draw(generator(3, 0), 8) == model().draw(generator(3, 0), 8)


def test_software_does_not_scale_with_many_nodes_and_rarely_hits_one() -> None:
    assert software_at(1.0, 2048) == pytest.approx(software_at(1.0, 20_480))
    assert software_at(1.0, 1) < 0.02


@pytest.mark.parametrize("asked", [{"fleet": "Meta RSC-9"}, {"without": ("Meta RSC-9",)}])
def test_an_unknown_name_is_refused_with_the_nearest(asked: dict[str, object]) -> None:
    with pytest.raises(PenstockError, match=r"'Meta RSC-9'.*Meta RSC-1"):
        model(**asked)  # type: ignore[arg-type]


def test_no_fleet_left_is_refused() -> None:
    with pytest.raises(PenstockError, match="none of the 7"):
        model(without=tuple(row.name for row in ROWS))
