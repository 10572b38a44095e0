"""Tables of metered nodes: read in anybody's spelling, blanks filled and said, mistakes told."""

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.plan.backtest.power_rows import MeteredRow, NodeConfig, is_power, read
from penstock.plan.backtest.row_file import lines

FULL = {
    "round": "v4.0",
    "submitter": "lab",
    "gpu": "H100 SXM 80GB",
    "gpus": "64",
    "nodes": "8",
    "cooling": "immersion",
    "meter": "AC",
    "psu_conversion_eff": "0.94",
    "benchmark": "llama2_70b_lora",
    "runs": "10",
    "global_batch": "8",
    "mean_run_s": "318",
    "mean_node_w": "5822",
}


def rows(
    tmp_path: Path, *changes: Mapping[str, str], drop: tuple[str, ...] = ()
) -> list[MeteredRow]:
    made = [{k: v for k, v in (FULL | change).items() if k not in drop} for change in changes]
    path = tmp_path / "power.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return read(path)


def config(tmp_path: Path, drop: tuple[str, ...] = (), **change: str) -> NodeConfig:
    found = rows(tmp_path, change, drop=drop)[0].config
    assert found is not None
    return found


def test_a_full_row(tmp_path: Path) -> None:
    [row] = rows(tmp_path, {})
    assert row.source == "lab v4.0"
    assert row.node_w == 5822
    found = row.config
    assert found is not None
    assert (found.accelerator.name, found.tdp_w) == ("H100 SXM5", 700)
    assert (found.per_node, found.nodes, found.cooling, found.supplies) == (8, 8, "immersion", 0.94)
    assert (found.batch, found.run_s) == (8, 318)  # not the count of runs
    assert found.assumed == ()


def test_other_spellings_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(
        "Accelerator Model Name,num_accelerators,number_of_nodes,Cooling,measurement_type,"
        "conversion_eff,Workload,global_batch_size,time_to_train_min,Avg Node Power kW\n"
        "NVIDIA H100-SXM5-80GB,64,8,Water-cooled,AC,94,Llama2 70B LoRA,8,5.3,7.106\n"
    )
    assert is_power(lines(path))
    [row] = read(path)
    assert row.node_w == pytest.approx(7106)
    found = row.config
    assert found is not None
    assert (found.accelerator.name, found.per_node, found.nodes) == ("H100 SXM5", 8, 8)
    assert (found.cooling, found.supplies) == ("liquid", 0.94)
    assert found.run_s == pytest.approx(318)


def test_watts_per_accelerator_will_do(tmp_path: Path) -> None:
    [row] = rows(tmp_path, {"node_w_per_gpu": "727.5"}, drop=("mean_node_w",))
    assert row.node_w == pytest.approx(8 * 727.5)


def test_blanks_are_filled_and_said(tmp_path: Path) -> None:
    found = config(tmp_path, cooling="", psu_conversion_eff="", nodes="", gpus="16")
    assert (found.cooling, found.supplies, found.per_node, found.nodes) == ("unknown", 0.96, 8, 2)
    said = " ".join(found.assumed)
    for word in ("cooling", "96%", "2 nodes", "8 accelerators"):
        assert word in said


def test_missing_columns_are_blanks(tmp_path: Path) -> None:
    drop = ("cooling", "meter", "psu_conversion_eff", "benchmark", "global_batch", "mean_run_s")
    found = config(tmp_path, drop=drop)
    assert (found.cooling, found.batch, found.run_s) == ("unknown", None, None)
    assert found.benchmark == ""


def test_a_system_can_name_its_cooling(tmp_path: Path) -> None:
    found = config(tmp_path, cooling="", system="liquid-cooled rack 7")
    assert found.cooling == "liquid"
    assert "cooled by liquid" in found.assumed


def test_a_rack_that_is_one_domain_is_cooled_by_liquid(tmp_path: Path) -> None:
    assert config(tmp_path, gpu="GB200", cooling="").cooling == "liquid"


def test_a_meter_behind_the_supplies_does_not_see_their_loss(tmp_path: Path) -> None:
    assert config(tmp_path, meter="DC busbar", psu_conversion_eff="").supplies == 1.0
    assert config(tmp_path, meter="", psu_conversion_eff="0.94").supplies == 0.94


def test_a_power_limit_stands_for_the_tdp(tmp_path: Path) -> None:
    assert config(tmp_path, power_limit_w="500").tdp_w == 500
    assert config(tmp_path, gpu="B200 SXM 700W").tdp_w == 700


def test_fewer_accelerators_than_nodes_are_those_of_one_node(tmp_path: Path) -> None:
    for nodes in (64, 8, 4):
        found = config(tmp_path, gpus="8", nodes=str(nodes))
        assert (found.per_node, found.nodes) == (8, nodes)
        assert "8 accelerators in each node" in found.assumed
    cards = config(tmp_path, gpu="RTX 4090", gpus="8", nodes="8")
    assert (cards.per_node, cards.nodes) == (1, 8)
    one = config(tmp_path, gpus="1", nodes="1")
    assert (one.per_node, one.nodes) == (1, 1)


def test_a_count_before_the_name_is_that_of_a_node(tmp_path: Path) -> None:
    found = config(tmp_path, drop=("gpus",), gpu="4x H100 SXM", nodes="2")
    assert (found.accelerator.name, found.per_node, found.nodes) == ("H100 SXM5", 4, 2)


def test_a_row_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    found = rows(
        tmp_path, {"gpu": "Abacus"}, {"gpu": ""}, {"mean_node_w": "N/A"}, {"gpu": "TPU v5e"}, {}
    )
    assert [row.config is None for row in found] == [True, True, True, True, False]
    reasons = [row.skipped for row in found]
    for reason, word in zip(reasons, ("'Abacus'", "blank", "mean_node_w", "TDP"), strict=False):
        assert word in reason


def test_a_cell_that_should_be_a_number_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"row 1 .*column mean_run_s: 'long'") as caught:
        rows(tmp_path, {}, {"mean_run_s": "long"})
    assert "leave the cell blank" in str(caught.value)
    with pytest.raises(PenstockError, match="has no column gpu"):
        rows(tmp_path, {}, drop=("gpu",))


def test_what_is_a_power_table() -> None:
    assert is_power([{"mean_node_w": ""}])
    assert not is_power([{"step_time_s": "", "gpu": ""}])
