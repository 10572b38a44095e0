"""Offers ranked for a run: by price, by deadline, with spot; and files that cannot be meant."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, RunFailed
from penstock.run.load import load_table
from penstock.simulate.rent import screen
from penstock.simulate.rent.offers import Offer, OfferRow, of_catalog, read_offers
from penstock.simulate.rent.rank import BOOT_S, REPLACING, Ranking, Wanted, rank
from penstock.simulate.rent.spans import of_trace
from penstock.simulate.traces import Trace

RUN = load_table(
    {
        "name": "rented",
        "model": {"preset": "llama-1b"},
        "data": {"sequence": 4096},
        "train": {"tokens": "25B", "batch_tokens": "1Mi", "precision": "bf16"},
    }
)
HEAD = "provider,accelerator,usd_per_hour,term"
HOUR_S = 3600.0


def offer(provider: str, usd: float, term: str = "on-demand", chip: str = "H100 SXM5", **more):
    row = OfferRow(provider=provider, accelerator=chip, usd_per_hour=usd, term=term, **more)
    return Offer(row, chip, "test")


def ranked(*offers: Offer, **wanted) -> Ranking:
    asked = Wanted(**{"nodes": 1, "lives": 5, **wanted})
    return rank(RUN, offers, asked, REPLACING)


@settings(max_examples=10)
@given(
    st.lists(st.floats(0.5, 20), min_size=2, max_size=4, unique=True),
    st.sampled_from(["on-demand", "spot"]),
)
def test_the_cheaper_of_equal_machines_ranks_first(prices, term):
    found = ranked(*(offer(str(usd), usd, term) for usd in prices))
    assert [one.offer.row.usd_per_hour for one in found.ranked] == sorted(prices)


def test_the_cost_is_hours_times_price_and_the_last_checkpoint_out():
    (one,) = ranked(offer("a", 2.0, egress_usd_per_gb=0.1)).ranked
    hours = one.days.p50 * 24
    gigabytes = one.lived.plan.life.recovery.checkpoint_bytes / 1e9
    assert one.usd.p50 == pytest.approx(hours * 8 * 2.0 + 0.1 * gigabytes)
    assert hours == pytest.approx((sorted(one.lived.wall_s)[2] + BOOT_S) / HOUR_S)
    assert one.usd_per_million == pytest.approx(one.usd.p50 / 25e3, rel=1e-4)


def test_a_cheap_offer_that_is_late_ranks_behind_one_in_time():
    slow, fast = offer("slow", 0.2, chip="A100 SXM4 80GB"), offer("fast", 9.0)
    assert ranked(slow, fast).ranked[0].offer == slow
    found = ranked(slow, fast, deadline_s=20 * HOUR_S)
    assert [one.offer for one in found.ranked] == [fast, slow]
    assert [one.late for one in found.ranked] == [0.0, 1.0]


def test_spot_with_a_deadline_is_mixed_and_never_late():
    spot = offer("a", 1.0, "spot", interruptions_per_day=6.0, available=0.5)
    found = ranked(spot, offer("a", 3.0), deadline_s=18 * HOUR_S, lives=20)
    mixed, alone = found.ranked
    assert mixed.fallback is alone.offer
    assert mixed.late == 0.0
    assert 0 < mixed.spot_share < 1
    assert mixed.usd.p50 < alone.usd.p50
    (mix,) = (line for line in screen.lines(found) if line.startswith("mix "))
    assert "On-demand" in mix
    assert re.search(r"with nothing done, [\d.]+ (min|h)( \d+ (min|s))? after the start$", mix)


def test_spot_alone_may_be_late_where_there_is_no_on_demand():
    spot = offer("a", 1.0, "spot", interruptions_per_day=6.0, available=0.3)
    (one,) = ranked(spot, deadline_s=18 * HOUR_S).ranked
    assert one.fallback is None
    assert one.late == 1.0
    assert any(line.startswith("late ") for line in screen.lines(ranked(spot, deadline_s=3600.0)))


def test_a_trace_says_when_spot_is_there():
    always, half = (Trace((0.0, 36e3), (1, there), 72e3) for there in (1, 0))
    spot = offer("a", 1.0, "spot")
    first, second = (ranked(spot, trace=trace).ranked[0] for trace in (always, half))
    assert first.days.p50 < 0.65 < second.days.p50


def test_spans_of_a_trace_begin_anywhere_in_it_and_repeat():
    trace = Trace((0.0, 10.0, 30.0, 40.0), (2, 1, 2, 3), 60.0)
    assert list(of_trace(trace, 2, 0.0, 100.0)) == [(0.0, 10.0), (30.0, 70.0), (90.0, 100.0)]
    assert list(of_trace(trace, 2, 20.0, 60.0)) == [(10.0, 50.0)]
    assert list(of_trace(trace, 1, 20.0, 60.0)) == [(0.0, 60.0)]
    assert list(of_trace(trace, 4, 20.0, 60.0)) == []


def test_weeks_on_spot_that_is_taken_back_every_hour_are_played_exactly():
    # 24 spans a day of 45 min: each brings what is left of it after a restart.
    trace = Trace((0.0, 2700.0), (1, 0), 3600.0)
    slow = offer("a", 1.0, "spot", chip="A100 SXM4 80GB")
    one = ranked(slow, trace=trace, deadline_s=90 * 86400.0).ranked[0]
    spans = one.lived.wall_s.max() / (2700.0 - one.restart_s)
    assert one.days.p95 * 24 == pytest.approx(spans, rel=0.05)
    assert one.usd.p95 == pytest.approx(spans * 0.75 * 8, rel=0.05)


def test_sizes():
    assert [one.nodes for one in ranked(offer("a", 2.0, nodes_available=2), nodes=None).ranked] == [
        1,
        2,
    ]
    four = ranked(offer("a", 2.0), nodes=None, accelerators=4)
    assert four.ranked[0].lived.own.ranks == 4


def test_a_large_run_is_tried_on_sizes_that_end_in_time():
    tokens = RUN.train.tokens * 400  # 10 trillion
    large = RUN.model_copy(update={"train": RUN.train.model_copy(update={"tokens": tokens})})

    def sizes(**more):
        wanted = {name: more.pop(name) for name in ("deadline_s",) if name in more}
        found = rank(large, [offer("a", 2.0, **more)], Wanted(lives=1, **wanted), REPLACING)
        return {one.nodes: one.days.p50 for one in found.ranked}

    month = sizes()
    first, last = min(month), max(month)
    assert sorted(month) == [first << doubled for doubled in range(4)]
    assert month[last] < 60 < month[first]
    week = sizes(deadline_s=7 * 24 * HOUR_S)
    assert min(week) >= 4 * first
    assert min(week.values()) < 7
    assert list(sizes(nodes_available=1)) == [1]
    assert first > 1
    assert {one.nodes for one in ranked(offer("a", 2.0), nodes=None).ranked} == {1, 2, 4, 8}


def test_no_offer_fits():
    with pytest.raises(RunFailed, match="no offer fits: a: 1 nodes, 4 wanted"):
        ranked(offer("a", 2.0, nodes_available=1), nodes=4)
    with pytest.raises(RunFailed, match=r"no offer fits: RTX 4090, 1 node: .* in no layout"):
        ranked(offer("a", 0.6, chip="RTX 4090"))


def test_a_wrong_seed_is_no_fault_of_the_offers():
    with pytest.raises(PenstockError, match=r"^--seed -1"):
        ranked(offer("a", 2.0), seed=-1)


def test_the_catalog_has_offers_with_dates():
    found = of_catalog()
    assert {one.row.term for one in found} == {"on-demand", "spot"}
    assert all(one.source.startswith("catalog, ") and "20" in one.source for one in found)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,H100 SXM5,-2,spot", "o.csv:2: usd_per_hour = -2: write more than 0"),
        ("a,H100 SXM5,nan,spot", "usd_per_hour = nan"),
        ("a,H100 SXM5,x,spot", "expected float, found 'x'"),
        ("a,H900,2,spot", "o.csv:2: accelerators: no 'H900'"),
        ("a,H100 SXM5,397,on-demand", "Is it in cents, or of a whole node"),
        ("a,H100 SXM5,31.8,on-demand", "Is it in cents, or of a whole node"),
        ("a,H100 SXM5,0.02,on-demand", "Is it in cents, or of a whole node"),
        ("a,H100 SXM5,2,weekly", "term = 'weekly': write on-demand, spot, reserved"),
        ("a,H100 SXM5,2", "not as many cells"),
    ],
)
def test_a_row_that_cannot_be_meant(row: str, words: str, tmp_path: Path):
    file = tmp_path / "o.csv"
    file.write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(PenstockError) as error:
        read_offers(file)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_offers(tmp_path: Path):
    file = tmp_path / "o.csv"
    file.write_text(f"{HEAD},nodes_available,available\nnorth,H100 SXM5,2.5,spot,,0.9\n")
    (one,) = read_offers(file)
    assert (one.accelerator, one.row.nodes_available, one.history.down_s) == (
        "H100 SXM5",
        None,
        pytest.approx(8640),
    )
    file.write_text("provider,term\na,spot\n")
    with pytest.raises(PenstockError, match=r"o\.csv:1: no column accelerator, usd_per_hour"):
        read_offers(file)
    file.write_text(f"{HEAD}\n")
    with pytest.raises(PenstockError, match="0 offers"):
        read_offers(file)
