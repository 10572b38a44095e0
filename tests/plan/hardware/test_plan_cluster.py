"""From "here", a name or a file to a machine; where each number came from; what is warned about."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from made_probe import probed
from penstock.catalog import sites
from penstock.errors import PenstockError
from penstock.meter import inventory
from penstock.meter.devices import Devices
from penstock.meter.inventory import MachineInventory, take_inventory
from penstock.plan.hardware import cluster
from penstock.plan.hardware.cap import capped
from penstock.plan.hardware.cluster import ResolvedMachine, here_file, machine_for, machine_of
from penstock.run.clusters.file import ClusterFile
from penstock.run.clusters.load import load_cluster, save_cluster
from penstock.run.clusters.price import Amount
from penstock.run.schema.run import Run


def run_on(**cluster: object) -> Run:
    return Run.model_validate(
        {"name": "r", "model": {"preset": "llama-3m"}, "cluster": cluster or {"use": "here"}}
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    return tmp_path


def on_cpu(monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> MachineInventory:
    seen = MachineInventory(Devices("cpu", cores, "", "", 8 << 30), "Some CPU")
    monkeypatch.setattr(cluster, "take_inventory", lambda: seen)
    return seen


def test_three_lines_are_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('nodes = 4\n[accelerator]\nname = "H100"\n')
    machine = machine_for(run_on(use=str(file))).machine
    assert (machine.accelerator, machine.nodes, machine.per_node) == ("H100 SXM5", 4, 8)
    assert machine.tiers[-1].size == 32
    assert machine.sources[""].startswith("catalog")
    assert machine.usd_per_hour is None


def test_what_the_file_says_beats_the_catalog_and_is_sourced() -> None:
    file = ClusterFile.model_validate(
        {
            "name": "mine",
            "nodes": 2,
            "accelerator": {"name": "H100", "matmul": {"bf16": "600 TFLOP/s"}},
            "tier": [{"name": "all", "size": 16, "bandwidth": "50 GB/s", "oversubscription": 2}],
            "site": {"name": "us-east-1", "pue": 1.5},
            "price": {"usd_per_hour": 2.0},
        }
    )
    machine = machine_of(file)
    assert machine.matmul_flops["bf16"] == 600e12
    assert machine.matmul_flops["fp8"] > 600e12  # still the catalog's
    assert machine.tiers[0].bytes_per_s == 25e9
    assert machine.pue == 1.5
    assert machine.gco2e_per_kwh
    assert machine.sources["matmul_flops"] == machine.sources["pue"] == "cluster file mine"
    assert machine.sources["gco2e_per_kwh"].startswith("catalog")


def test_an_accelerator_of_ones_own_needs_its_figures() -> None:
    own = {"name": "Foo 9", "memory": "32 GiB", "memory_bandwidth": "1 TB/s"}
    rate = {"matmul": {"bf16": "100 TFLOP/s"}}
    machine = machine_of(ClusterFile.model_validate({"name": "c", "accelerator": own | rate}))
    assert machine.peak_flops == {}
    assert machine.matmul_flops == {"bf16": 100e12}
    with pytest.raises(PenstockError, match="memory_bandwidth"):
        machine_of(ClusterFile.model_validate({"name": "c", "accelerator": own}))
    with pytest.raises(PenstockError, match=r"add a \[\[tier\]\]"):
        machine_of(ClusterFile.model_validate({"name": "c", "nodes": 2, "accelerator": own | rate}))


def test_tiers_must_hold_every_accelerator() -> None:
    tier = [{"name": "node", "size": 8, "bandwidth": "1 GB/s"}]
    file = {"name": "c", "nodes": 2, "accelerator": {"name": "H100"}, "tier": tier}
    with pytest.raises(PenstockError, match="size = 16"):
        machine_of(ClusterFile.model_validate(file))


def test_catalog_names_times_nodes_times_accelerators() -> None:
    node = machine_for(run_on(use="DGX H100", nodes=4)).machine
    assert (node.nodes, node.per_node) == (4, 8)
    few = machine_for(run_on(use="H100", nodes=2, accelerators=4)).machine
    assert (few.nodes, few.per_node) == (2, 4)
    with pytest.raises(PenstockError, match=r'cluster.use = "H1OO"'):
        machine_for(run_on(use="H1OO"))


def test_here_without_a_probe_is_an_estimate_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch)
    found = machine_for(run_on())
    assert found.machine.sources[""].startswith("estimated")
    assert found.machine.per_node == 2
    assert found.machine.memory_bytes == 4 << 30
    assert "penstock probe" in found.warnings[0]


def test_here_with_a_known_gpu_uses_the_catalog_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = MachineInventory(Devices("cuda", 4, "NVIDIA H200", "", 0), "Some CPU")
    monkeypatch.setattr(cluster, "take_inventory", lambda: seen)
    found = machine_for(run_on())
    assert (found.machine.accelerator, found.machine.per_node) == ("H200 SXM", 4)
    assert "used the catalog" in found.warnings[0]
    unknown = replace(seen, devices=replace(seen.devices, name="NVIDIA Z9"))
    monkeypatch.setattr(cluster, "take_inventory", lambda: unknown)
    with pytest.raises(PenstockError, match="penstock probe"):
        machine_for(run_on())


def test_here_uses_a_probe_of_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_cpu(monkeypatch)
    save_cluster(probed(seen.fingerprint), here_file())
    found = machine_for(run_on())
    machine = found.machine
    assert found == ResolvedMachine(machine)  # nothing to warn about
    assert machine.sources["memory_bytes"].startswith("measured: probe of 2026-01-01")
    assert machine.matmuls["bf16"][0].flops == pytest.approx(2 * 64**3 / 5e-6)
    assert machine.curves["attention_s.bf16"] == ((256.0, 64.0, 1e-3),)  # of one head
    assert machine.curves["all_reduce_s"][1] == (1048576.0, 2e-3)
    assert machine.probed["fresh_bytes_per_s"] == 2e9
    assert machine.write_bytes_per_s == 1e9


def test_a_probe_of_other_hardware_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_cpu(monkeypatch)
    save_cluster(probed(seen.fingerprint), here_file())
    on_cpu(monkeypatch, cores=4)
    # `cpu_cores` is part of the fingerprint; the fixture stands for a machine that grew.
    monkeypatch.setattr(MachineInventory, "fingerprint", property(lambda self: "4 × Some CPU"))
    found = machine_for(run_on())
    assert not found.machine.curves
    assert "another machine" in found.warnings[0]
    assert seen.cpu in found.warnings[0]


def test_fewer_ranks_than_were_probed_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_cpu(monkeypatch)
    save_cluster(probed(seen.fingerprint), here_file())
    found = machine_for(run_on(accelerators=1))
    assert found.machine.per_node == 1
    assert "the probe ran 2 ranks" in found.warnings[0]


def test_the_probe_round_trips_through_its_file(tmp_path: Path) -> None:
    file = probed("x")
    save_cluster(file, tmp_path / "c.toml")
    assert load_cluster(tmp_path / "c.toml") == file
    assert machine_of(load_cluster(tmp_path / "c.toml")) == machine_of(file)


def test_the_fingerprint_tells_hardware_apart() -> None:
    cpu = take_inventory()
    assert cpu.fingerprint == take_inventory().fingerprint
    gpu = MachineInventory(Devices("cuda", 2, "NVIDIA H200", "", 0), cpu.cpu)
    one = MachineInventory(Devices("cuda", 1, "NVIDIA H200", "", 0), cpu.cpu)
    assert len({cpu.fingerprint, gpu.fingerprint, one.fingerprint}) == 3


def test_gpus_are_seen_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        folder = tmp_path / f"0000:0{i}:00.0"
        folder.mkdir()
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 41\n")
    monkeypatch.setattr(inventory, "NVIDIA", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert take_inventory().devices == Devices("cuda", 2, "NVIDIA H200", "", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert take_inventory().devices.count == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert take_inventory().devices.kind == "cpu"


def test_finding_a_machine_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from penstock.plan.hardware.cluster import machine_for; "
        "from penstock.run.schema.run import Run; "
        "machine_for(Run.model_validate({'name': 'r', 'model': {'preset': 'llama-3m'}})); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_run_file_can_name_the_place_and_the_price(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch)
    machine = machine_for(run_on(use="here", usd_per_hour=0.4, site="us-east-1")).machine
    place = sites.find("us-east-1")
    assert machine.usd_per_hour == 0.4
    assert machine.sources["usd_per_hour"] == "given in the run file"
    assert (machine.gco2e_per_kwh, machine.pue) == (place.carbon_gco2_per_kwh, place.pue)
    assert f"us-east-1 in {place.carbon_year}" in machine.sources["gco2e_per_kwh"]
    own = machine_for(run_on(use="here", site="us-east-1", carbon=12)).machine
    assert own.gco2e_per_kwh == 12
    assert own.sources["gco2e_per_kwh"] == "given in the run file"


def test_the_place_of_the_run_file_takes_that_of_the_cluster_file_away(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = '[accelerator]\nname = "H100"\n[site]\nname = "us-east-1"\npue = 1.9\n'
    file.write_text(text + "usd_per_kwh = 0.3\n[price]\nusd_per_hour = 2\n")
    country = next(s for s in sites.all() if s.kind == "country" and s.pue is None)
    machine = machine_for(run_on(use=str(file), site=country.name)).machine
    assert machine.gco2e_per_kwh == country.carbon_gco2_per_kwh
    assert machine.pue is None  # of another place
    assert "pue" not in machine.sources
    assert machine.usd_per_hour == 2
    assert machine_for(run_on(use=str(file), usd_per_hour=3)).machine.usd_per_hour == 3


def test_what_a_person_wrote_into_a_probe_is_not_measured() -> None:
    file = probed("x")
    price = file.price.model_copy(update={"usd_per_hour": Amount(1.0)})
    site = file.site.model_copy(update={"pue": 1.1})
    machine = machine_of(file.model_copy(update={"price": price, "site": site}))
    assert machine.sources["usd_per_hour"] == machine.sources["pue"] == "cluster file here"
    assert machine.sources["memory_bytes"].startswith("measured")


@pytest.mark.parametrize(
    ("use", "per_node"),
    [
        # Cards: any host holds any number of them.
        ("RTX 4090", 1),
        ("RTX 3090", 1),
        ("RTX A6000", 1),
        ("H100 PCIe", 1),
        ("H100 NVL", 1),
        ("L40S", 1),
        ("GH200", 1),
        # The node that is asked for.
        ("tinybox green", 6),
        ("6x RTX 4090", 6),
        ("DGX H100", 8),
        ("AWS p6e-gb200.36xlarge", 4),
        # Boards and racks: the usual node.
        ("H100", 8),
        ("MI300X", 8),
        ("A100 SXM4 40GB", 8),
        ("V100 SXM2 16GB", 8),
        ("GB200", 72),
        ("TPU v5p", 4),
        ("Trainium2", 16),
    ],
)
def test_how_many_accelerators_a_name_means(use: str, per_node: int) -> None:
    found = machine_for(run_on(use=use))
    assert (found.machine.per_node, found.machine.nodes) == (per_node, 1)
    assert bool(found.warnings) == (per_node == 1)


def test_cards_are_asked_for_by_number() -> None:
    found = machine_for(run_on(use="RTX 4090", accelerators=6, nodes=2))
    assert (found.machine.per_node, found.machine.nodes) == (6, 2)
    assert not found.warnings
    assert "one in a node" in machine_for(run_on(use="RTX 4090")).warnings[0]
    with pytest.raises(PenstockError, match=r"a node has 8 of them; write cluster\.nodes = 2"):
        machine_for(run_on(use="RTX 4090", accelerators=9))


def test_a_cluster_file_at_no_known_site_is_refused_with_the_nearest() -> None:
    table = {"name": "mine", "accelerator": {"name": "H100"}, "site": {"name": "us-east-9"}}
    with pytest.raises(PenstockError, match=r"mine: site\.name: sites: no .* 'us-east-1'"):
        machine_of(ClusterFile.model_validate(table))


def test_an_accelerator_under_a_power_limit_is_slower_and_a_probed_one_is_refused() -> None:
    table = {"name": "mine", "accelerator": {"name": "H200", "cap_w": 500}}
    machine = machine_of(ClusterFile.model_validate(table))
    free = machine_of(ClusterFile.model_validate({"accelerator": {"name": "H200"}, "name": "m"}))
    assert machine.cap_w == 500
    share = machine.matmul_flops["bf16"] / free.matmul_flops["bf16"]
    assert share == pytest.approx(0.827)  # as measured
    with pytest.raises(PenstockError, match="run `penstock probe` again"):
        capped(replace(free, curves={"update_s": ((1.0, 1.0),)}), 500)
