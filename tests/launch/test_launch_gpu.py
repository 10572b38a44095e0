"""The same on a GPU. CI has none: `scripts/gpu_check.sh` runs these."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from made_sets import made_set
from penstock.errors import RunFailed
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.policy import hang
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_view import RunView
from whole_runs import FIELDS, At, MakeFile, go, pids

pytestmark = pytest.mark.gpu


def on_gpu(run_file: MakeFile, name: str, **fields: object) -> Path:
    one = {"cluster.accelerators": 1, "train.deterministic": True, "train.steps": 200}
    return run_file(name, **FIELDS | one | fields)


def test_killed_and_resumed_equals_undisturbed(run_file: MakeFile) -> None:
    calm = go(on_gpu(run_file, "calm"))
    killer = At(35, lambda folder: os.kill(pids(folder)[0], signal.SIGKILL))
    killed = go(on_gpu(run_file, "killed"), listener=killer)
    assert calm["machine"].startswith("1 ×")
    assert killed["faults"] == 1
    assert killed["weights_hash"] == calm["weights_hash"]


def test_the_gpu_and_the_cpu_agree(run_file: MakeFile, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"train.precision": "fp32", "train.steps": 20}
    gpu = go(on_gpu(run_file, "gpu", **same))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cpu = go(on_gpu(run_file, "cpu", **same))
    assert cpu["machine"].endswith("cores")
    assert gpu["val_losses"][0][1] != gpu["val_loss"]
    # First weights are drawn on the device, so only the untrained loss level and the fall compare.
    assert gpu["val_loss"] == pytest.approx(cpu["val_loss"], rel=0.05)


def test_a_full_gpu_goes_on_with_a_smaller_layout(run_file: MakeFile, tmp_path: Path) -> None:
    """64 sequences of 4096 tokens through a 1B model keep some 300 GiB without recompute."""
    made = made_set(tmp_path, np.arange(80 * 4096 + 1) % 300, [0], name="long")
    fields = {
        "model.layers": None,
        "model.hidden": None,
        "model.heads": None,
        "model.kv_heads": None,
        "model.ffn": None,
        "model.tied": None,
        "model.preset": "llama-1b",
        "model.vocab": 300,
        "data.dataset": str(made.folder),
        "data.sequence": 4096,
        "train.batch_tokens": 64 * 4096,
        "train.steps": 2,
        "train.precision": "bf16",
        "evaluate.every": "never",
        "layout.microbatch": 64,
        "cluster.accelerators": 1,
        "guard.timeout": "120 s",
    }
    path = run_file("full", **fields)
    with pytest.raises(RunFailed, match=r"The planner would write layout\.microbatch = \d+ \("):
        go(path)
    report = go(path, "guard.on_oom=replan")
    assert report["status"] == "done"
    assert report["tokens"] == 2 * 64 * 4096
    assert report["layout"]["microbatch"] < 64 or report["layout"].get("recompute")


def test_a_hang_leaves_stacks_and_the_flight_recorder(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "FLOOR_S", 3.0)
    path = on_gpu(run_file, "hangs", **{"train.steps": 60})
    folder = RunFolder(load(path).folder)
    arm(folder.traps, Failpoint("t", "sleep", "forward", rank=0, step=30, ms=600_000))
    report = go(path)
    assert report["status"] == "done"
    logs = folder.logs / "attempt-0"
    assert "failpoints.py" in (logs / "rank-0.stack").read_text()
    assert (logs / "flight-0").stat().st_size > 0


def test_a_restart_of_a_compiled_run_takes_seconds(run_file: MakeFile) -> None:
    """The fork server keeps imports, and the disk keeps kernels."""
    fields = {"train.precision": "bf16", "train.steps": 300, "model.hidden": 256}
    calm = go(on_gpu(run_file, "calm", **fields))
    killer = At(150, lambda folder: os.kill(pids(folder)[0], signal.SIGKILL))
    killed = go(on_gpu(run_file, "killed", **fields), listener=killer)
    assert killed["weights_hash"] == calm["weights_hash"]
    assert killed["ledger"]["down"] < 30


def test_a_compiled_run_that_is_not_deterministic_goes_on_along_its_curve(
    run_file: MakeFile,
) -> None:
    """Kernels may add in another order each time: the losses agree within 1 %, not to the bit."""
    fields = {"train.deterministic": False, "train.precision": "bf16", "train.steps": 40}
    fields |= {"model.hidden": 256, "train.compile": "on"}
    calm = go(on_gpu(run_file, "calm", **fields))
    path = on_gpu(run_file, "killed", **fields)
    arm(RunFolder(load(path).folder).traps, Failpoint("t", "kill", "forward", rank=0, step=25))
    killed = go(path)
    assert killed["faults"] == 1
    assert killed["tokens"] == calm["tokens"] == 40 * 128
    curves = [RunView(RunFolder(Path(report["folder"]))).curve for report in (calm, killed)]
    assert [c["step"].tolist() for c in curves] == [list(range(1, 41))] * 2
    losses, found = (curve["loss"] for curve in curves)
    off = np.abs(found / losses - 1)
    print(f"losses apart by {off[:24].max():.2e} before the kill, {off[24:].max():.2e} after it")
    assert off.max() < 0.01
    assert np.abs(found[25:] / losses[24:-1] - 1).max() > 0.01  # one batch too far would be seen
