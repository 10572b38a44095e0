"""Power: the constants are what the metered nodes say, and a stall is never free."""

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.catalog import accelerators
from penstock.catalog import power as metered
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger
from penstock.plan.backtest.power_fit import fit
from penstock.plan.backtest.rows import job_of
from penstock.plan.hardware.cap import capped
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.job import constants
from penstock.plan.job.outcome import STEP_CAUSES, StepTime
from penstock.plan.power import power, server, site
from penstock.plan.power.host import BOARD, CARDS, DESKTOP, FANS_LEFT, HostPower, host_power
from penstock.plan.power.power import TdpShares, cooling_class
from penstock.plan.step.step import predict


def test_the_constants_are_the_fit_of_the_metered_rows() -> None:
    fitted = fit(metered.all())
    assert pytest.approx(fitted.busy, abs=0.001) == constants.BUSY_SHARE
    assert pytest.approx(fitted.wait, abs=0.001) == constants.WAIT_SHARE


@given(st.floats(0.3, 1.0), st.floats(0.05, 0.29))
@settings(deadline=None, max_examples=30)
def test_a_fit_finds_the_shares_that_made_the_watts(busy: float, wait: float) -> None:
    chip = TdpShares(busy, wait).of(700.0)
    runs = [
        made_run(power.node(chip, 8, cooling).at(share), share, cooling)
        for share, cooling in ((1.0, "immersion"), (0.6, "immersion"), (0.8, "air"))
    ]
    found = fit(runs)
    assert found.busy == pytest.approx(busy)
    assert found.wait == pytest.approx(wait)


def made_run(node_w: float, busy: float, cooling: str) -> metered.MeteredRun:
    return metered.MeteredRun(
        name="made",
        source="made",
        accelerator="H100 SXM5",
        accelerators=8,
        nodes=1,
        cooling=cooling,
        benchmark="bert",
        global_batch=8,
        run_s=100.0,
        node_w=node_w,
        busy=busy,
        log_share=1.0,
    )


@given(
    st.floats(50, 2000),
    st.integers(1, 16),
    st.sampled_from(list(FANS_LEFT)),
    st.floats(0, 1),
    st.floats(0, 1),
)
@settings(deadline=None, max_examples=60)
def test_a_node_draws_more_the_more_there_is_of_anything(
    tdp_w: float, count: int, cooling: str, one: float, other: float
) -> None:
    chip = TdpShares().of(tdp_w)
    node = power.node(chip, count, cooling)
    assert 0 < node.rest_w < node.wait_w < node.busy_w
    low, high = sorted((one, other))
    assert node.wait_w <= node.at(low) <= node.at(high) <= node.busy_w * (1 + 1e-9)
    assert node.busy_w > count * chip.busy_w / power.SUPPLIES  # the host is never free
    assert power.node(chip, count + 1, cooling).busy_w > node.busy_w
    assert power.node(chip, count, cooling, supplies=1.0).busy_w < node.busy_w
    air, liquid, bath = (power.node(chip, count, c).at(one) for c in ("air", "liquid", "immersion"))
    assert air > liquid > bath


def test_hosts_by_the_machine_that_an_accelerator_is_sold_in() -> None:
    kinds = {n: host_power(accelerators.find(n)) for n in ("H200", "MI300X", "L40S", "RTX 4090")}
    assert kinds == {"H200": BOARD, "MI300X": BOARD, "L40S": CARDS, "RTX 4090": DESKTOP}
    assert host_power(None) is BOARD
    assert BOARD.total_w(8) == 1500
    # One accelerator of a board is a part of a node that others have the rest of.
    assert BOARD.total_w(1) == 1500 / 8
    # A rack of 72: 120 to 132 kW are what it may take, switches included.
    rack = of_catalog("GB200", 72)
    assert rack.cooling == "direct liquid"
    drawn = power.power_draw(rack, made.step(), rack.cooling)
    assert drawn is not None
    assert 95e3 < 72 * drawn.by_cause[Cause.COMPUTE] < 132e3
    # A desktop at work, as its owner reads it on the plug.
    chip = TdpShares().of(450.0)
    assert 550 < power.node(chip, 1, "air", host=DESKTOP).busy_w < 700


@given(st.sampled_from([BOARD, CARDS, DESKTOP]), st.integers(1, 32))
@settings(deadline=None, max_examples=30)
def test_more_accelerators_need_more_of_a_host(host: HostPower, count: int) -> None:
    assert host.total_w(count + 1) > host.total_w(count) > host.processors_w(count) > 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("air,RDHx", "air"),
        ("Air-cooled", "air"),
        ("fans", "air"),
        ("Water-cooled", "liquid"),
        ("direct liquid", "liquid"),
        ("Direct-to-Chip", "liquid"),
        ("DLC", "liquid"),
        ("SMC IMMERSION COOLING TECHNOLOGY", "immersion"),
        ("repaired in May", None),
        ("", None),
    ],
)
def test_cooling_in_anybodys_words(words: str, expected: str | None) -> None:
    assert cooling_class(words) == expected


@given(st.floats(50, 2000), st.sampled_from([1, 8, 64]), st.floats(0.01, 10), st.floats(0.01, 10))
@settings(deadline=None, max_examples=40)
def test_a_stall_burns_power_and_work_burns_more(
    tdp_w: float, count: int, busy_s: float, wait_s: float
) -> None:
    draw = power.power_draw(
        made.machine(count, tdp_w=tdp_w), made.step(matmul=busy_s, gather=wait_s)
    )
    assert draw is not None
    watts = draw.by_cause
    assert 0 < watts[Cause.DOWN] < watts[Cause.COMMUNICATE] < watts[Cause.COMPUTE]
    assert watts[Cause.COMMUNICATE] <= watts[Cause.REDO] <= watts[Cause.COMPUTE]
    assert set(watts) == set(Cause)


def test_joules_are_watts_times_seconds_by_cause() -> None:
    draw = power.power_draw(made.machine(), made.step())
    assert draw is not None
    ledger = power.with_joules(Ledger.of(compute=100.0, down=10.0), draw)
    assert ledger.joules is not None
    assert isclose(ledger.joules[Cause.COMPUTE], 100 * draw.by_cause[Cause.COMPUTE])
    assert isclose(ledger.joules[Cause.DOWN], 10 * draw.by_cause[Cause.DOWN])
    assert ledger.joules[Cause.BUBBLE] == 0
    assert ledger.provenance["joules"].source == "estimated"


def test_what_the_machine_says_of_itself_wins() -> None:
    given_ = power.power_draw(made.machine(host_w=800.0, idle_w=50.0), made.step())
    assert given_ is not None
    assert given_.by_cause[Cause.DOWN] == pytest.approx(50 + 100)  # its fans are in it
    usual = power.power_draw(made.machine(), made.step())
    assert usual is not None
    rest = power.node(TdpShares().of(700.0), 8, "air").rest_w
    assert usual.by_cause[Cause.DOWN] == pytest.approx(rest / 8)
    bath = power.power_draw(made.machine(), made.step(), "immersion")
    assert bath is not None
    assert bath.by_cause[Cause.DOWN] < usual.by_cause[Cause.DOWN]


def test_switches_are_counted_where_there_are_several_nodes() -> None:
    one, two = (power.power_draw(made.machine(n), made.step()) for n in (8, 16))
    assert one is not None
    assert two is not None
    more = two.by_cause[Cause.COMPUTE] - one.by_cause[Cause.COMPUTE]
    assert more == pytest.approx(power.NETWORK_W)


def test_no_tdp_no_power() -> None:
    assert power.power_draw(made.machine(tdp_w=None), made.step()) is None


H100 = of_catalog("H100", 8)


def watts_computing(machine: Machine, **parts: float) -> float:
    """Return the watts of one accelerator while it computes these parts of a step."""
    assert machine.tdp_w
    share = power.computing(machine, parts).share
    return power.chip_power(machine, machine.tdp_w).at(share)


def test_what_holds_an_operation_up_decides_what_it_draws() -> None:
    """The levels are those of the catalog's measured loads, and the mix is by seconds."""
    draws = {draw.load: draw for draw in metered.DRAWS}
    for part, load in (("matmul", "matmul"), ("elementwise", "memory")):
        share = draws[load].watts / (draws[load].limit_w or 1)
        assert watts_computing(H100, **{part: 2.0}) == pytest.approx(700 * share, rel=0.002)
    mixed = watts_computing(H100, matmul=3.0, optimizer=1.0)
    assert mixed == pytest.approx(
        0.75 * watts_computing(H100, matmul=1) + 0.25 * watts_computing(H100, optimizer=1)
    )
    waiting_w = power.TdpShares().of(700).wait_w
    assert watts_computing(H100, launch=1.0) == pytest.approx(waiting_w)


def test_parts_that_are_not_known_are_busy() -> None:
    busy_w = power.TdpShares().of(700).busy_w
    assert watts_computing(H100) == pytest.approx(busy_w)
    assert watts_computing(H100, recompute=1.0) == pytest.approx(busy_w)
    assert power.computing(replace(H100, kind="cpu"), {"matmul": 1.0}).share == 1.0
    assert power.computing(replace(H100, tdp_w=None), {"matmul": 1.0}).share == 1.0


@pytest.mark.parametrize("cap_w", [250.0, 400.0, 600.0])
def test_no_operation_draws_more_than_the_limit(cap_w: float) -> None:
    capped = replace(H100, cap_w=cap_w)
    for part in ("matmul", "elementwise", "launch"):
        assert watts_computing(capped, **{part: 1.0}) <= cap_w + 1e-6
    assert watts_computing(capped, matmul=1.0) == pytest.approx(cap_w)


def test_a_probe_that_saw_products_knows_their_watts() -> None:
    probed = replace(H100, probed={"loaded_w": 500.0})
    assert watts_computing(probed, matmul=1.0) == pytest.approx(500)
    assert 350 < watts_computing(probed, elementwise=1.0) < 400


def test_a_step_of_products_costs_more_than_one_of_sums() -> None:
    """The plan's energy is by what the step does, beside the same host."""

    def step_of(part: str) -> StepTime:
        causes = dict.fromkeys(STEP_CAUSES, 0.0) | {"compute": 1.0}
        return StepTime({part: 1.0}, causes, 1.0, 1, 1.0)

    products, sums = (power.power_draw(H100, step_of(p)) for p in ("matmul", "elementwise"))
    assert products
    assert sums
    more = products.by_cause[Cause.COMPUTE] - sums.by_cause[Cause.COMPUTE]
    assert more == pytest.approx(700 * (0.992 - 0.757) / power.SUPPLIES, rel=0.01)
    assert products.by_cause[Cause.COMMUNICATE] == sums.by_cause[Cause.COMMUNICATE]
    alone = power.accelerator_draw(H100, step_of("matmul"))
    assert alone
    assert alone.by_cause[Cause.COMPUTE] == pytest.approx(700 * 0.992)
    assert any("multiplying" in note for note in products.notes)


def cpus(threads: float | None, ranks: int) -> Machine:
    """Return a host of CPUs, as an inventory sees it."""
    return Machine(
        name="here",
        accelerator="AMD EPYC",
        kind="cpu",
        per_node=ranks,
        nodes=1,
        memory_bytes=2**30,
        memory_bytes_per_s=1e9,
        peak_flops={},
        matmul_flops={"fp32": 1e9},
        tiers=(),
        cpu_threads=threads,
    )


def test_cpus_draw_by_their_threads_as_in_a_report() -> None:
    """The plan's watts are those that a report estimates without a meter, within the same band."""
    causes = dict.fromkeys(STEP_CAUSES, 0.0) | {"compute": 3.0, "peer_wait": 1.0}
    step = StepTime({"matmul": 3.0, "jitter": 1.0}, causes, 4.0, 1, 1.0)
    draw = power.power_draw(cpus(8, ranks=4), step)
    assert draw
    for cause, watts in server.server_w(2).items():
        if cause is not Cause.REDO:  # steps done again wait as often as others
            assert draw.by_cause[cause] == watts
    assert draw.by_cause[Cause.REDO] == pytest.approx(2 * (0.75 * 3.5 + 0.25 * 0.74))
    assert draw.band == server.SERVER_BAND
    ledger = power.with_joules(Ledger({Cause.COMPUTE: 100.0}), draw)
    assert ledger.sum("joules") == pytest.approx(700)
    assert "threads" in ledger.provenance["joules"].note
    assert any("8 hardware threads" in note for note in site.power_notes(cpus(8, ranks=4)))


def test_cpus_of_which_nothing_is_known_have_no_power() -> None:
    causes = dict.fromkeys(STEP_CAUSES, 0.0) | {"compute": 1.0}
    step = StepTime({"matmul": 1.0}, causes, 1.0, 1, 1.0)
    assert power.power_draw(cpus(None, ranks=2), step) is None
    assert not site.power_notes(cpus(None, ranks=2))
    stated = power.power_draw(replace(cpus(8, ranks=2), tdp_w=100.0), step)
    assert stated
    assert stated.band == power.BAND, "what somebody stated wins"


@pytest.mark.parametrize(
    "row", [r for r in metered.CAPS if r.load == "training"], ids=lambda r: r.name
)
def test_a_training_under_a_limit_draws_what_was_measured(row: metered.CappedDraw) -> None:
    """Six layers of an 8B model on one H200: in no fit, at any limit."""
    cells = {"model_name": "llama-8b", "layers": "6", "hidden": "4096", "ffn_hidden": "14336"}
    cells |= {"heads": "32", "kv_heads": "8", "vocab": "128256", "seq_len": "4096", "gpu": "H200"}
    cells |= {"num_gpus": "1", "microbatch": "1", "global_batch_seqs": "1", "sharding": "ddp"}
    cells |= {"precision": "bf16", "framework": "fsdp", "notes": "compile", "recompute": "none"}
    job = job_of(cells, [])
    machine = capped(job.machine, row.limit_w) if row.limit_w < 700 else job.machine
    took = predict(replace(job, machine=machine))
    draw = power.accelerator_draw(machine, took)
    assert draw
    watts = draw.by_cause[Cause.REDO]  # of a step
    assert watts == pytest.approx(row.watts, rel=0.06)
