"""Clusters side by side: money by hand, flips that flip, dates, spot, and names that are none."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.policy.spot import SpotHistory
from penstock.run.load import load_table
from penstock.simulate.compare import picture, screen
from penstock.simulate.compare.asked import Asked, question
from penstock.simulate.compare.compare import ClusterComparison, compare
from penstock.simulate.compare.outcome import Outcome, outcome, usd_of
from penstock.simulate.compare.spot import on_spot
from penstock.simulate.rent.rank import LATE
from penstock.simulate.rent.spans import drawn, moving

RUN = load_table(
    {
        "name": "compared",
        "model": {"preset": "llama-1b"},
        "data": {"sequence": 4096},
        "train": {"tokens": "25B", "batch_tokens": "1Mi", "precision": "bf16"},
    }
)
START = datetime(2026, 12, 1, tzinfo=UTC)
DAY_S = 86400.0
OWNED = """[site]
usd_per_kwh = {kwh}
pue = 1.3
carbon = 300
water = 1.5
[price]
term = "owned"
utilisation = {used}
delivery = "{delivery}"
[price.owned]
purchase = {purchase}
"""


def write(folder: Path, name: str, body: str, chip: str = "H100 SXM5", nodes: int = 1) -> str:
    file = folder / f"{name}.toml"
    file.write_text(f'nodes = {nodes}\n[accelerator]\nname = "{chip}"\n{body}')
    return str(file)


def owned(
    folder: Path,
    kwh: float = 0.1,
    used: float = 0.8,
    purchase: float = 325000,
    delivery: str = "1 h",
    name: str = "owned",
) -> str:
    body = OWNED.format(kwh=kwh, used=used, purchase=purchase, delivery=delivery)
    return write(folder, name, body)


def rented(folder: Path, usd: float = 3.0, name: str = "rented", chip: str = "H100 SXM5") -> str:
    return write(folder, name, f"[price]\nusd_per_hour = {usd}\n", chip)


def spot(folder: Path, usd: float = 1.0, more: str = "", name: str = "spot") -> str:
    terms = f'[price]\nterm = "spot"\nusd_per_hour = {usd}\n{more}'
    return write(folder, name, terms)


def compared(*names: str, deadline: str | None = None, lives: int = 8) -> ClusterComparison:
    by_s = question("2026-12-01", deadline, lives, 0).deadline_s
    return compare(RUN, names, Asked(START, by_s, lives))


def by_name(found: ClusterComparison) -> dict[str, Outcome]:
    return {one.label: one for one in found.outcomes}


def test_money_time_energy_carbon_and_water_follow_from_the_lives(tmp_path: Path) -> None:
    found = by_name(compared(owned(tmp_path), rented(tmp_path)))
    rent, own = found["rented"], found["owned"]
    assert rent.usd is not None
    assert own.usd is not None
    # Machines are paid for from the moment they are up, five minutes before they can start.
    assert rent.usd == pytest.approx((rent.lived.wall_s + 300) / 3600 * 8 * 3.0)
    assert rent.finish_s == pytest.approx(rent.lived.wall_s + 300)
    assert own.finish_s == pytest.approx(own.lived.wall_s + 3600)
    hourly = own.lived.hourly
    assert hourly is not None
    assert own.lived.kwh is not None
    assert own.usd == pytest.approx(own.lived.wall_s / 3600 * 8 * hourly.usd + own.lived.kwh * 0.1)
    assert own.co2e_kg is not None
    assert own.co2e_kg.p50 == pytest.approx(np.median(own.lived.kwh) * 0.3)
    assert own.water_l is not None
    assert own.water_l.p50 == pytest.approx(np.median(own.lived.kwh) / 1.3 * 1.5)
    assert rent.co2e_kg is None
    assert rent.water_l is None


def test_the_plan_s_own_error_is_in_the_range_of_days(tmp_path: Path) -> None:
    (one,) = compared(rented(tmp_path), lives=50).outcomes
    band = one.lived.plan.bands["step_s"]
    ratio = one.lived.longer
    assert np.median(ratio) == pytest.approx(1.0, abs=0.01)
    outside = np.mean((ratio < band.low) | (ratio > band.high))
    assert 0.1 <= outside <= 0.3  # four of five lie within


def test_the_cheapest_in_time_is_the_choice_and_the_late_ones_stand_behind(tmp_path: Path) -> None:
    cheap = rented(tmp_path, 0.5, "slow", "A100 SXM4 80GB")
    fast = rented(tmp_path, 3.0, "fast")
    free = compared(cheap, fast)
    assert free.best is not None
    assert free.best.label == "slow"
    assert [one.label for one in free.pareto] == ["fast", "slow"]
    dated = compared(cheap, fast, deadline="20 h")
    assert [one.label for one in dated.outcomes] == ["fast", "slow"]
    assert [one.late for one in dated.outcomes] == [0.0, 1.0]
    assert any(flip.unit == "days" and flip.choice == "slow" for flip in dated.flips)
    none = compared(cheap, fast, deadline="1 h")
    assert none.best is not None
    assert none.best.label == "fast"
    assert "None is in time" in screen.choice(none)


@pytest.mark.parametrize(
    "flipped",
    [
        ("electricity", {"kwh": 0.1}, "kwh"),
        ("utilisation", {"used": 0.8}, "used"),
        ("the purchase of a node", {"purchase": 325000.0}, "purchase"),
    ],
)
def test_a_flip_is_where_the_choice_changes(tmp_path: Path, flipped) -> None:
    what, now, field = flipped
    other = rented(tmp_path, 2.75)
    first = compared(owned(tmp_path, **now), other)
    assert first.best is not None
    assert first.best.label == "owned"
    flip = next(f for f in first.flips if (f.cluster, f.what) == ("owned", what))
    for share, winner in ((0.001, "owned"), (-0.001, "rented")):
        at = flip.at * (1 - share if flip.rises else 1 + share)
        if field == "used":
            at = min(at, 1.0)
        found = compared(owned(tmp_path, **{field: at}), other)
        assert found.best is not None
        assert found.best.label == winner, (flip.words, at)


def test_a_price_that_flips_the_choice(tmp_path: Path) -> None:
    home = owned(tmp_path)
    first = compared(home, rented(tmp_path, 6.0))
    flip = next(f for f in first.flips if f.cluster == "rented")
    assert not flip.rises
    for factor, winner in ((1.001, "owned"), (0.999, "rented")):
        found = compared(home, rented(tmp_path, flip.at * factor))
        assert found.best is not None
        assert found.best.label == winner


def test_a_date_that_flips_the_choice(tmp_path: Path) -> None:
    late = owned(tmp_path, used=1.0, delivery="30 days")
    first = compared(late, rented(tmp_path, 9.0))
    (flip,) = [f for f in first.flips if f.unit == "days"]
    assert flip.choice == "rented"
    for factor, winner in ((1.001, "owned"), (0.99, "rented")):
        found = compared(late, rented(tmp_path, 9.0), deadline=f"{flip.at * factor * 24} h")
        assert found.best is not None
        assert found.best.label == winner


@settings(max_examples=15)
@given(first=st.floats(0.2, 6.0), second=st.floats(0.2, 6.0), mixed=st.booleans())
def test_a_later_date_never_raises_the_chance_to_miss_it(
    tmp_path_factory: pytest.TempPathFactory, first: float, second: float, mixed: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    terms = "interruptions_per_day = 6\navailable = 0.4\n"
    terms += "on_demand_usd_per_hour = 3\n" if mixed else ""
    lived = _lived(spot(folder, 1.0, terms, f"spot-{mixed}"))
    plain = _lived(rented(folder))
    soon, later = sorted((first, second))
    for one in (lived, plain):
        misses = []
        for days in (soon, later):
            found = outcome(one, days * DAY_S)
            assert isinstance(found, Outcome)
            misses.append(found.late or 0.0)
        assert misses[0] >= misses[1]


_KNOWN: dict[str, object] = {}


def _lived(path: str):
    if path not in _KNOWN:
        (one,) = compared(path).outcomes
        _KNOWN[path] = one.lived
    return _KNOWN[path]


def test_spot_with_on_demand_keeps_the_date_and_costs_less(tmp_path: Path) -> None:
    terms = "interruptions_per_day = 6\navailable = 0.4\n"
    alone = spot(tmp_path, 1.0, terms, "alone")
    mixed = spot(tmp_path, 1.0, terms + "on_demand_usd_per_hour = 3\n", "mixed")
    found = by_name(compared(alone, mixed, rented(tmp_path, 3.0), deadline="20 h"))
    assert found["mixed"].late == 0.0
    assert (found["alone"].late or 0) > LATE
    assert 0 < (found["mixed"].spot_share or 0) < 1
    assert np.median(found["mixed"].usd) < np.median(found["rented"].usd)  # type: ignore[arg-type]
    assert found["alone"].limit[0] == "capacity"
    assert any("on_demand_usd_per_hour" in note for note in screen.notes(found["alone"]))


def test_a_second_region_shortens_the_wait_and_moves_are_paid(tmp_path: Path) -> None:
    terms = "interruptions_per_day = 6\navailable = 0.4\negress_usd_per_gb = 0.1\n"
    found = by_name(
        compared(
            spot(tmp_path, 1.0, terms, "one"),
            spot(tmp_path, 1.0, terms + "regions = 2\n", "two"),
            spot(tmp_path, 1.0, terms + "regions = 4\n", "four"),
        )
    )
    assert found["four"].days.p50 < found["two"].days.p50 < found["one"].days.p50
    two = found["two"]
    gigabytes = two.lived.plan.life.recovery.checkpoint_bytes / 1e9
    assert two.spot is not None
    assert two.usd == pytest.approx(
        two.spot.of("spot_s") / 3600 * 8 + 0.1 * gigabytes * two.spot.of("starts")
    )


def test_spot_that_never_comes_is_left_out_with_the_reason(tmp_path: Path) -> None:
    never = spot(tmp_path, 1.0, "interruptions_per_day = 200\navailable = 0.02\n")
    found = compared(never, rented(tmp_path))
    assert found.left_out[0][0] == "spot"
    assert "most lives do not finish" in found.left_out[0][1]


def test_a_cluster_that_cannot_hold_the_model_is_shown_and_not_ranked(tmp_path: Path) -> None:
    found = compared("RTX 4090", rented(tmp_path))
    assert [one.label for one in found.outcomes] == ["rented"]
    ((name, why),) = found.left_out
    assert "RTX 4090" in name
    assert "in no layout" in why
    assert why in screen.markdown(found)
    assert found.to_json()["left_out"][0]["fits"] is False


@pytest.mark.parametrize(
    "name", ["8xA100 SXM4 80GB", "8xL40S", "16 x RTX 4090", "16 x RTX 5090", "8xMI300X"]
)
def test_older_and_smaller_accelerators_are_compared(name: str) -> None:
    found = compared(name, lives=2)
    (one,) = found.outcomes
    assert one.lived.done.own.ranks == int(name.split("x")[0])
    assert one.usd is not None


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([""], "none given"),
        (["H100", ""], "an empty name"),
        (["nonsuch"], '--clusters "nonsuch": '),
        (["nothere.toml"], '"nothere.toml": no such file'),
        (["H100", "h100"], "h100 is named twice"),
        (["8xH100", "8 x h100"], "is named twice"),
        (["12xH100"], "write 8 or 16"),
        (["0xH100"], "write 1 or more"),
        (["H100"] * 21, "at most 20"),
    ],
)
def test_names_that_are_no_clusters(names: list[str], told: str) -> None:
    with pytest.raises(PenstockError) as error:
        compared(*names)
    assert told in str(error.value)


def test_the_same_file_by_two_paths_is_named_twice(tmp_path: Path) -> None:
    path = rented(tmp_path)
    with pytest.raises(PenstockError, match="named twice"):
        compared(path, str(tmp_path / "." / "rented.toml"))


def test_owned_without_a_price_of_electricity_is_the_file_s_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", '[price]\nterm = "owned"\n')
    with pytest.raises(PenstockError, match="needs a price of electricity"):
        compared(path, "H100")


@pytest.mark.parametrize(
    ("start", "deadline", "told"),
    [
        ("tomorrow", None, "--start 'tomorrow': not a date"),
        ("2026-13-01", None, "not a date"),
        ("2026-12-01", "2026-11-01", "30 days before the start"),
        ("2026-12-01", "soon", "--deadline"),
    ],
)
def test_dates_that_are_none(start: str, deadline: str | None, told: str) -> None:
    with pytest.raises(PenstockError, match=told):
        question(start, deadline, 8, 0)


def test_a_date_is_a_deadline() -> None:
    assert question("2026-12-01", "2027-01-10", 8, 0).deadline_s == 40 * DAY_S


def test_without_a_price_clusters_are_ranked_by_days(tmp_path: Path) -> None:
    slow, fast = write(tmp_path, "slow", "", "A100 SXM4 80GB"), write(tmp_path, "fast", "")
    found = compared(slow, fast)
    assert [one.label for one in found.outcomes] == ["fast", "slow"]
    assert found.pareto == ()
    assert "no price" in " ".join(screen.lines(found))
    assert "no price of any cluster is known" in picture.svg(found)


def test_the_picture_has_every_cluster_and_is_xml(tmp_path: Path) -> None:
    found = compared(owned(tmp_path), rented(tmp_path), spot(tmp_path), deadline="30 h")
    root = ET.fromstring(picture.svg(found))
    words = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    for one in found.outcomes:
        assert one.label in words
    assert "the date" in words


def test_owned_clusters_are_held_against_renting(tmp_path: Path) -> None:
    found = compared(owned(tmp_path), rented(tmp_path, 3.0))
    against = {one.against.rent: one.against for one in found.break_evens}
    assert against["rented"].rent_usd_per_hour == 3.0
    assert any("catalog" in rent for rent in against)
    used = against["rented"].utilisation
    assert used is not None
    there = compared(owned(tmp_path, used=used), rented(tmp_path, 3.0))
    one = next(o for o in there.break_evens if o.against.rent == "rented")
    assert one.against.own_usd_per_hour == pytest.approx(3.0)
    assert one.date(START) is not None or one.against.years is None


def test_levers_change_nothing_at_their_present_value(tmp_path: Path) -> None:
    (one,) = compared(owned(tmp_path)).outcomes
    assert usd_of(one.lived, None, usd_per_kwh=0.1) == pytest.approx(one.usd)


def test_a_life_on_spot_is_the_same_whenever_it_is_asked(tmp_path: Path) -> None:
    (one,) = compared(spot(tmp_path)).outcomes
    assert on_spot(one.lived, None) == on_spot(one.lived, None)


def test_regions_touch_where_the_run_moves() -> None:
    history = SpotHistory(0.5 * DAY_S, 0.5 * DAY_S, 4.0)

    def share(regions: int) -> float:
        upto = 400 * DAY_S
        found = moving([drawn(history, 0, 0, region) for region in range(regions)])
        return sum(end - begin for begin, end in _until(found, upto)) / upto

    assert share(1) == pytest.approx(0.5, abs=0.05)
    assert share(2) == pytest.approx(0.75, abs=0.05)
    assert share(3) == pytest.approx(0.875, abs=0.05)


def _until(found, upto: float):
    for begin, end in found:
        if begin > upto:
            return
        yield begin, min(end, upto)


def test_a_site_that_cannot_feed_the_machines_is_shown_and_not_ranked(tmp_path: Path) -> None:
    site = '[site]\npower_limit_w = "5 kW"\npue = 1.2\n'
    fed = write(tmp_path, "fed", f"{site.replace('5 kW', '50 kW')}[price]\nusd_per_hour = 3\n")
    found = compared(write(tmp_path, "starved", f"{site}[price]\nusd_per_hour = 1\n"), fed)
    assert [one.label for one in found.outcomes] == ["fed"]
    ((name, why),) = found.left_out
    assert name == "starved"
    assert why.startswith("site.power_limit_w")
