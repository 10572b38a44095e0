"""`penstock checkpoint` on what a real run of two ranks has saved."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed
from penstock.guard.detect.fingerprints import weights_hash
from penstock.guard.format.manifest import manifest_bytes
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.run.load import load
from penstock.watch.report.screen import summary


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("saved")
    path = folder / "run.toml"
    path.write_text(
        f'name = "small"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        '[train]\nprecision = "fp32"\nsteps = 12\nbatch_tokens = 128\n'
        '[evaluate]\nevery = "never"\n[guard]\ncheckpoint = "4 steps"\ntimeout = "60 s"\n'
        "[cluster]\naccelerators = 2\n"
        "[layout]\nshard = 2\n"
    )
    return summary(start(load(path)))


@pytest.fixture
def copy(report: dict[str, Any], tmp_path: Path) -> Path:
    """Copy the run's folder, to be damaged."""
    folder = tmp_path / "small"
    shutil.copytree(report["folder"], folder)
    return folder


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def told(*words: object) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_list_and_verify_a_run_that_is_whole(report: dict[str, Any]) -> None:
    found = told("list", report["folder"])["checkpoints"]
    disk = [one for one in found if one["tier"] == "disk"]
    assert [one["step"] for one in disk] == [12, 8, 4]
    assert all(one["state"] == "whole" and one["layout"]["shard"] == 2 for one in disk)
    done = call("verify", report["folder"], "--tier", "disk")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"step {step} (disk): whole" for step in (12, 8, 4)]
    assert "step-00000012" in call("list", report["folder"]).stdout.replace("\n", "")


def test_verify_names_the_damage_and_fails(copy: Path) -> None:
    file = copy / "checkpoints" / "step-00000008" / "state" / "__1_0.distcp"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 16
    file.write_bytes(raw)
    done = call("verify", copy, "--tier", "disk")
    assert isinstance(done.exception, RunFailed)
    assert "1 of 3 checkpoints are damaged" in str(done.exception)
    assert "step 8 (disk): state/__1_0.distcp: content does not match its hash" in done.stdout
    assert call("verify", copy, "--step", 12, "--tier", "disk").exit_code == 0
    found = told("convert", copy, copy.parent / "w.safetensors", "--step", 12)
    assert found["from"] == "step 12 (disk)"
    with pytest.raises(RunFailed, match="whole"):
        raise call("convert", copy, copy.parent / "x.pt", "--step", 8).exception


def test_show_says_where_the_run_stood_and_what_it_holds(report: dict[str, Any]) -> None:
    found = told("show", report["folder"], 8)
    assert found["scalars"]["tokens"] == 8 * 128
    assert found["tensors"]["model/embed.weight"]["shape"][1] == 32
    said = call("show", report["folder"]).stdout
    for word in ("consumed", "optimizer/embed.weight/exp_avg", "float32", "2 ranks"):
        assert word in said


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_converted_weights_are_the_run_s(report: dict[str, Any], tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert told("convert", report["folder"], out)["bytes"] == out.stat().st_size
    safe = name.endswith("safetensors")
    found = load_file(out) if safe else torch.load(out, weights_only=True)["model"]
    assert weights_hash(found, None) == report["weights_hash"]


def test_files_of_other_ranks_and_torch_s_own_tools_hold_them_too(
    report: dict[str, Any], tmp_path: Path
) -> None:
    done = told("convert", report["folder"], tmp_path / "five", "--ranks", 5)
    assert done["kind"] == "ranks"
    folder = tmp_path / "five" / "step-00000012"
    assert len(list((folder / "state").glob("*.distcp"))) == 5
    for source, out in [(folder, "a.pt"), (Path(report["checkpoint"]), "b.pt")]:
        dcp_to_torch_save(source / "state", tmp_path / out)
        found = torch.load(tmp_path / out)
        weights = {n.removeprefix("model/"): t for n, t in found.items() if n.startswith("model/")}
        assert weights_hash(weights, None) == report["weights_hash"]
    assert told("convert", folder, tmp_path / "again.safetensors")["kind"] == "safetensors"


def test_a_folder_with_files_is_written_into_only_with_force(
    report: dict[str, Any], tmp_path: Path
) -> None:
    out, notes = tmp_path / "out", tmp_path / "out" / "notes.md"
    out.mkdir()
    asked = ("convert", report["folder"], out, "--ranks", 2)
    assert told(*asked)["kind"] == "ranks"  # an empty folder has nothing to lose
    shutil.rmtree(out / "step-00000012")
    notes.write_text("mine")
    with pytest.raises(PenstockError, match="is there already; write into it with --force, or"):
        raise call(*asked).exception
    assert list(out.iterdir()) == [notes]
    for ranks in (3, 5):  # the second replaces the first
        told("convert", report["folder"], out, "--ranks", ranks, "--force")
        step = out / "step-00000012"
        assert len(list((step / "state").glob("*.distcp"))) == ranks
    assert sorted(out.iterdir()) == [notes, step]
    assert notes.read_text() == "mine"
    with pytest.raises(PenstockError, match="holds the checkpoint that is converted"):
        raise call("convert", step, out, "--ranks", 2, "--force").exception


def test_a_file_is_replaced_only_with_force(report: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    out.write_text("mine")
    with pytest.raises(PenstockError, match="is there already; replace it with --force, or"):
        raise call("convert", report["folder"], out).exception
    assert out.read_text() == "mine"
    told("convert", report["folder"], out, "--force")
    assert weights_hash(load_file(out), None) == report["weights_hash"]


def test_mistakes_are_told_in_one_line(report: dict[str, Any], tmp_path: Path) -> None:
    for words, said in [
        (("convert", report["folder"], tmp_path / "x.bin"), "ends in .safetensors or .pt"),
        (("convert", report["folder"], tmp_path / "x", "--ranks", 2, "--moments"), "--moments"),
        (("show", report["folder"], 5), "no checkpoint of step 5; found: 4, 8, 12"),
        (("list", tmp_path / "none"), "no run"),
    ]:
        error = call(*words).exception
        assert isinstance(error, PenstockError)
        assert said in str(error)


def test_adopt_takes_a_checkpoint_of_another_run(report: dict[str, Any], copy: Path) -> None:
    """The copy is the same run, so its own are in the way, and a manifest without a run stands for
    another one."""
    stranger = copy.parent / "stranger"
    shutil.copytree(copy / "checkpoints" / "step-00000008", stranger)
    told_of = json.loads((stranger / "manifest.json").read_text())
    about = {"run": "ab" * 16, "settings": "", "layout": told_of["layout"]}
    manifest = manifest_bytes(8, told_of["files"], **about)
    (stranger / "manifest.json").write_bytes(manifest)
    refused = call("adopt", copy, stranger)
    assert refused.exit_code != 0
    assert "--replace" in str(refused.exception)
    done = told("adopt", copy, stranger, "--replace")
    assert done == {"run": "small", "step": 8, "name": "small", "replaced": [8, 12]}
    states = {one["state"] for one in told("list", copy)["checkpoints"] if one["aside"]}
    assert states == {"replaced, put aside"}
    assert [one["step"] for one in told("verify", copy)["checkpoints"]] == [8, 4]


def test_a_list_of_checkpoints_that_are_gone_says_so(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    said = call("list", copy).stdout
    assert said.startswith("run 'small' finished at step 12, and its checkpoints are gone from ")
