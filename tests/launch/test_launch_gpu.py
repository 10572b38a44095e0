"""The same on a GPU. CI has none: `scripts/gpu_check.sh` runs these."""

import os
import signal
from pathlib import Path

import pytest
from test_launch_runs import FIELDS, At, MakeFile, go, pids

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
