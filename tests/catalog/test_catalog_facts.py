"""Every shipped row: it reads, it has a source, possible numbers, references that resolve."""

import itertools
import math
import subprocess
import sys
from dataclasses import fields

import pytest

from penstock.catalog import (
    accelerators,
    cooling,
    costs,
    facilities,
    failures,
    models,
    networks,
    nodes,
    open_weights,
    power,
    prices,
    scaling_laws,
    sites,
    trainings,
)
from penstock.catalog.table import fold
from penstock.errors import PenstockError

KINDS = (accelerators, cooling, costs, facilities, failures, models, networks, nodes, prices, sites)
KINDS += (open_weights, scaling_laws, trainings)
TABLES = [power.DRAWS, power.CAPS, *(module.TABLE for module in KINDS)]
RECORDS = [pytest.param(r, id=f"{t.kind}:{r.name}") for t in TABLES for r in t]


@pytest.mark.parametrize("record", RECORDS)
def test_every_row_has_a_source_and_honest_numbers(record):
    assert record.name == record.name.strip() != ""
    assert record.sources().get("", "").strip(), "the first part of a source holds for the row"
    own = {f.name for f in fields(record)}
    assert set(record.sources()) - {""} <= own, "a source names a field that does not exist"
    for field in own:
        value = getattr(record, field)
        assert value is None or not isinstance(value, float) or math.isfinite(value)
        assert value is None or not isinstance(value, int | float) or value >= 0


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.kind)
def test_names_are_unique_and_aliases_shadow_no_name(table):
    names = [n.casefold() for n in table.names()]
    assert len(set(names)) == len(names) > 0
    aliases = [fold(a) for record in table for a in record.aliases]
    assert not {fold(n) for n in names} & set(aliases)
    assert len(set(aliases)) == len(aliases)


def test_the_tables_are_as_full_as_promised():
    counts = {t.kind: len(t) for t in TABLES}
    assert counts["accelerators"] >= 35
    assert counts["nodes"] >= 35
    assert counts["networks"] >= 40
    assert counts["sites"] >= 400
    assert counts["models"] >= 30
    assert 15 <= counts["prices"] <= 25, "a summary, not somebody's table"


def test_open_weights_and_trainings_are_of_known_models():
    for weights in open_weights.all():
        assert weights.shape.params() > 1e8
        assert 10 < weights.tokens / weights.shape.params() < 1e5
        assert "/" in weights.hub
    for one in trainings.all():
        assert one.model_name in models.names() or one.layers


@pytest.mark.parametrize("draw", power.DRAWS.all(), ids=lambda d: d.name)
def test_a_draw_is_of_a_known_accelerator_and_below_its_limit(draw):
    assert accelerators.find(draw.accelerator).name == draw.accelerator
    assert draw.load in ("rest", "idle", "memory", "matmul", "training")
    assert 0 < draw.watts < 1.02 * draw.limit_w
    assert draw.basis_of("watts") == "measured"
    assert (draw.rate is None) == (draw.rate_unit == "")


@pytest.mark.parametrize("a", accelerators.all(), ids=lambda a: a.name)
def test_accelerator_rates_are_dense_and_possible(a):
    assert a.memory_bytes == a.memory_gib * 2**30
    assert 12 <= a.memory_gib <= 512
    assert 200 <= a.memory_gb_per_s <= 30_000
    assert a.tdp_w is None or 50 <= a.tdp_w <= 2500
    assert a.domain >= 1
    for low, high in ((a.peer_gb_per_s, a.link_gb_per_s), (a.price_usd_low, a.price_usd_high)):
        assert low is None or high is None or low <= high
    if a.bf16_tflops:
        # A sparse bf16 figure would put the best measured matmul below 0.41 of it.
        assert a.fp8_tflops is None or 1 <= a.fp8_tflops / a.bf16_tflops < 4.5
        assert a.matmul_bf16_tflops is None or 0.41 < a.matmul_bf16_tflops / a.bf16_tflops < 1
        assert a.peak_flops("bf16") == a.bf16_tflops * 1e12


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "tf32"),
    [
        ("A100 SXM4 80GB", 312, None, 156),
        ("H100 SXM5", 989, 1979, 494.5),
        ("H200 SXM", 989, 1979, 494.5),
        ("B200 SXM", 2250, 4500, 1125),
        ("MI300X", 1307, 2614, 653.7),
    ],
)
def test_known_dense_rates(name, bf16, fp8, tf32):
    a = accelerators.find(name)
    assert (a.bf16_tflops, a.fp8_tflops, a.tf32_tflops) == (bf16, fp8, tf32)


def test_v100_has_no_bf16_and_says_none_not_zero():
    v100 = accelerators.find("V100 SXM2 16GB")
    assert v100.fp16_tflops == 125
    assert v100.bf16_tflops is None
    assert v100.peak_flops("bf16") is None


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_torch_device_names_map_exactly(device, name):
    found = accelerators.for_device(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A10G",  # not an A10
        "NVIDIA H200 NVL",  # not an H200 SXM
        "NVIDIA GH200 480GB",  # the 96 GB part
        "AMD Instinct MI250X",  # half a module
        "NVIDIA GeForce RTX 4090 D",
        "nvidia h200",
        "H100",
        "cpu",
        "",
    ],
)
def test_an_unknown_device_is_none_never_a_guess(device):
    assert accelerators.for_device(device) is None


def test_a_device_name_belongs_to_one_accelerator():
    names = [d for a in accelerators.all() for d in a.device_names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("node", nodes.all(), ids=lambda n: n.name)
def test_nodes_resolve_and_add_up(node):
    accelerator = accelerators.find(node.accelerator)
    assert accelerator.name == node.accelerator, "by its own name, not an alias"
    if node.nics is not None:
        assert node.nics * node.nic_gbit_per_s == node.scaleout_gbit_per_s
    if node.rated_w is not None:
        assert node.accelerators * (accelerator.tdp_w or 0) <= node.rated_w
    if node.training_w_low is not None:
        assert node.training_w_low <= node.training_w_high
    assert (node.training_w_high or 0) <= (node.rated_w or math.inf)


@pytest.mark.parametrize("net", networks.all(), ids=lambda n: n.name)
def test_networks_are_possible(net):
    assert net.gb_per_s is None or (0 < net.gb_per_s <= 2000 and net.per)
    assert (net.latency_us is None) == (net.latency_is == "")
    assert (net.allreduce_gb_per_s is None) == (net.allreduce_at == "")
    assert net.line_share is None or 0.4 < net.line_share < 1.1


def test_nccl_constants_stand_by_the_measured_rings():
    for name, measured, nccl in (
        ("NVLink 3", 235, 240),
        ("NVLink 4", 368, 371),
        ("NVLink 5", 682, 722),
    ):
        net = networks.find(name)
        assert net.allreduce_gb_per_s == pytest.approx(measured, abs=1)
        assert net.nccl_gb_per_s == pytest.approx(nccl, abs=1)
        assert net.basis_of("allreduce_gb_per_s") == "measured"


@pytest.mark.parametrize("site", sites.all(), ids=lambda s: s.name)
def test_sites_are_possible(site):
    values = (
        site.carbon_gco2_per_kwh,
        site.pue,
        site.water_l_per_kwh,
        site.electricity_usd_per_kwh,
    )
    assert any(v is not None for v in values), "a row without a value says nothing"
    assert site.carbon_gco2_per_kwh is None or 0 < site.carbon_gco2_per_kwh < 1400
    assert site.pue is None or 1.0 < site.pue < 2.0
    assert site.electricity_usd_per_kwh is None or 0.02 < site.electricity_usd_per_kwh < 0.6
    assert (site.carbon_gco2_per_kwh is None) == (site.carbon_year is None)
    assert (site.pue is None) == (site.pue_year is None)
    assert (site.electricity_usd_per_kwh is None) == (site.electricity_year is None)
    assert bool(site.provider) == (site.kind == "cloud-region")


def test_no_site_is_carbon_free_by_contract():
    # AWS calls us-east-1 100 % carbon-free; the grid there is not.
    assert sites.find("us-east-1").carbon_gco2_per_kwh > 300
    assert len([s for s in sites.all() if s.kind == "us-state"]) >= 50


@pytest.mark.parametrize("price", prices.all(), ids=lambda p: p.name)
def test_prices_are_dated_and_ordered(price):
    assert accelerators.find(price.accelerator).name == price.accelerator
    assert price.name == f"{price.accelerator} {price.term}"
    assert price.as_of[:2] == "20"
    assert len(price.as_of) == 7
    assert (price.usd_per_hour_low or 0) <= price.usd_per_hour <= (price.usd_per_hour_high or 99)


def test_nobody_asks_more_for_spot_than_the_dearest_on_demand():
    spot = [p for p in prices.all() if p.term == "spot"]
    assert spot
    for price in spot:
        full = prices.of(price.accelerator)
        assert price.usd_per_hour < (full.usd_per_hour_high or full.usd_per_hour)


def test_price_of_takes_any_name_and_is_none_when_there_is_none():
    assert prices.of("h100", "spot").name == "H100 SXM5 spot"
    assert prices.of("Gaudi3") is None


def test_a_users_own_prices_take_the_place_of_ours(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text(
        "name,accelerator,term,usd_per_hour,as_of,source\n"
        "mine,H100 SXM5,on-demand,1.25,2026-11,our contract\n"
    )
    table = prices.load(own)
    assert prices.of("H100", table=table).usd_per_hour == 1.25
    assert prices.of("H200", table=table) is None


def test_failure_causes_are_shares_of_one_whole():
    rows = failures.measured("cause_share")
    assert sum(r.events for r in rows) == 419
    assert sum(r.value for r in rows) == pytest.approx(1, abs=1e-3)
    shares = failures.cause_shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["gpu"] == pytest.approx(268 / 419)


def test_failure_measures_have_their_meaning():
    llama = failures.find("Llama 3 405B run")
    assert llama.measure == "per_1000_node_days"
    assert llama.value == pytest.approx(419 / (2048 * 54) * 1000, abs=0.01)
    by_size = sorted((r.accelerators, r.value) for r in failures.measured("job_mttf_hours"))
    assert [v for _, v in by_size] == sorted((v for _, v in by_size), reverse=True)
    for row in failures.all():
        if row.measure.endswith("share") or "share_per" in row.measure:
            assert 0 < row.value < 1
        if row.low is not None:
            assert row.low <= row.value <= row.high
        if row.accelerator:
            assert accelerators.find(row.accelerator).name == row.accelerator


def test_the_room_is_light_to_import():
    code = (
        "import sys\n"
        "from penstock.catalog import accelerators, failures, models, nodes, networks, prices\n"
        "from penstock.catalog import sites\n"
        "print(*({'torch', 'numpy', 'pydantic', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("row", cooling.all(), ids=lambda row: row.name)
def test_halls_take_more_from_low_to_high(row):
    assert 0 < row.rack_w_low < row.rack_w < row.rack_w_high
    assert 1 <= row.pue_low < row.pue < row.pue_high
    assert all(cooling.read(words) == row for words in row.known_as())


def test_halls_are_read_from_anybodys_words():
    read = {
        words: cooling.read(words) for words in ("Air-cooled", "air,RDHx", "DLC", "a bath", "x")
    }
    found = {words: row.name if row else None for words, row in read.items()}
    assert found == {
        "Air-cooled": "air",
        "air,RDHx": "rear-door",
        "DLC": "direct liquid",
        "a bath": "immersion",
        "x": None,
    }
    with pytest.raises(PenstockError, match="legacy air, air, rear-door"):
        cooling.stated("in the cellar")


@pytest.mark.parametrize("row", facilities.all(), ids=lambda row: row.name)
def test_a_facility_has_a_number_and_its_range_is_in_order(row):
    known = [value for value in (row.low, row.typical, row.high) if value is not None]
    assert known == sorted(known) != []
    assert row.unit


@pytest.mark.parametrize("load", ["training", "matmul", "memory"])
def test_a_higher_limit_is_never_slower(load):
    rows = sorted((r for r in power.CAPS if r.load == load), key=lambda r: r.limit_w)
    assert len(rows) >= 10
    assert rows[-1].speed == 1.0
    for low, high in itertools.pairwise(rows):
        assert low.speed <= high.speed + 0.01
