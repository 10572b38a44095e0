"""The SkyPilot task of a run: what it rents, what a machine runs, and what is refused before."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from engine_runs import job_of
from penstock.errors import PenstockError
from penstock.launch.engines import sky
from penstock.launch.engines.engine import JobPhase
from penstock.launch.engines.sky import Sky, describe
from penstock.launch.engines.sky_task import launch_command
from penstock.launch.prepare import nodes
from penstock.meter.devices import Devices

SECTION = "cluster.sky"


@pytest.fixture(autouse=True)
def _no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "find_devices", lambda: Devices("cpu", 2, "", "", 2**30))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "there")


REFUSED = [
    (["guard.durable=null"], "guard.durable: missing, and rented machines take their disks along"),
    (["guard.durable=/data/runs"], 'guard.durable = "/data/runs": a folder of this machine'),
    (["guard.durable=file:///data"], 'guard.durable = "file:///data": a folder of this machine'),
    (["data.dataset=/data/pages"], 'data.dataset = "/data/pages": the nodes do not see this'),
    (["data.dataset=pages@12"], "`penstock data copy pages@12 s3://BUCKET/datasets` puts it into"),
    ([f"{SECTION}.accelerators=null"], f"{SECTION}.accelerators: missing; write what to rent"),
    ([f"{SECTION}.accelerators=8xH100!"], f'{SECTION}.accelerators = "8xH100!": no accelerator'),
    ([f"{SECTION}.accelerators=H100:0"], f'{SECTION}.accelerators = "H100:0": no accelerator'),
    (
        ["cluster.accelerators=4"],
        '= "H100:8": a node is planned with 4; write cluster.accelerators',
    ),
    ([f"{SECTION}.accelerators=cpu"], '= "cpu": cluster.use = "H100" plans with 8 × '),
    (["cluster.use=here"], 'write the same machine there, such as cluster.use = "H100"'),
    ([f"{SECTION}.infra=aws/us east"], f'{SECTION}.infra = "aws/us east": no place'),
    (
        [f"{SECTION}.infra=Slurm/lab", f'{SECTION}.secrets=["A_KEY"]'],
        f'{SECTION}.spot = true: SkyPilot has no spot machines on "Slurm/lab"',
    ),
    ([f"{SECTION}.setup=null"], f"{SECTION}.setup: missing, and a new machine has no Penstock"),
    ([f"{SECTION}.infra=gcp"], f'{SECTION}.secrets: empty, and machines of "gcp" have no rights'),
    ([f"{SECTION}.infra=null"], f"{SECTION}.secrets: empty, and machines of any cloud have no"),
    ([f'{SECTION}.secrets=["A_KEY=s3cret"]'], f'{SECTION}.secrets: "A_KEY…" is no name of a'),
    (["guard.spares=1"], "guard.spares = 1: SkyPilot replaces all machines of a job together"),
    (["log.webhook=https://hooks.example/s3cret"], "hand it on by cluster.sky.secrets"),
    (["train.loss=gone.py:smooth"], 'train.loss = "gone.py:smooth": gone.py cannot be sent'),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_bad_input_is_refused_before_anything_is_rented(overrides, words):
    (line,) = Sky().refusals(job_of("sky", *overrides))
    assert words in line
    assert "; " in line
    assert "s3cret" not in line


def test_what_can_run_is_not_refused():
    assert Sky().refusals(job_of("sky")) == []
    elsewhere = [f"{SECTION}.infra=gcp", f'{SECTION}.secrets=["AWS_ACCESS_KEY_ID"]']
    assert Sky().refusals(job_of("sky", *elsewhere)) == []
    slurm = [f"{SECTION}.infra=slurm/lab", f"{SECTION}.spot=false", f'{SECTION}.secrets=["A_KEY"]']
    assert Sky().refusals(replace(job_of("sky", *slurm), dry=True)) == []
    image = [f"{SECTION}.setup=null", f"{SECTION}.image=docker:registry/penstock:1"]
    assert Sky().refusals(job_of("sky", *image)) == []
    assert Sky().refusals(job_of("sky", f"{SECTION}.accelerators=cpu", "cluster.use=here")) == []


def test_a_task_rents_what_the_section_says():
    task = yaml.safe_load(Sky().text(job_of("sky", "cluster.nodes=4", f"{SECTION}.disk=500")))
    assert task["num_nodes"] == 4
    assert task["resources"] == {
        "use_spot": True,
        "disk_size": 500,
        "job_recovery": {"max_restarts_on_errors": 3},
        "infra": "aws/us-east-1",
        "accelerators": "H100:8",
    }
    assert task["envs"] == {"PENSTOCK_NODE_OF": "sky", "PENSTOCK_SUBMISSION": "a-token"}
    cpu = yaml.safe_load(Sky().text(job_of("sky", f"{SECTION}.accelerators=cpu")))
    assert "accelerators" not in cpu["resources"]


def test_values_of_secrets_stay_in_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "v3ry-s3cret-value")
    job = job_of("sky", f'{SECTION}.secrets=["AWS_SECRET_ACCESS_KEY"]')
    assert yaml.safe_load(Sky().text(job))["secrets"] == {"AWS_SECRET_ACCESS_KEY": None}
    command = launch_command(job.run, "task.yaml")
    assert command[-3:] == ["--secret", "AWS_SECRET_ACCESS_KEY", "task.yaml"]
    assert "v3ry" not in Sky().text(job) + " ".join(command)


def test_a_variable_that_is_not_set_is_refused_before_sky_is_asked(monkeypatch):
    monkeypatch.delenv("A_MISSING_KEY", raising=False)
    job = job_of("sky", f'{SECTION}.secrets=["A_MISSING_KEY"]')
    monkeypatch.setattr(sky, "_sky", lambda *_: pytest.fail("SkyPilot was asked"))
    (line,) = Sky().refusals(job)
    assert line.startswith('cluster.sky.secrets: "A_MISSING_KEY" is not set here')
    assert "`export A_MISSING_KEY=…`" in line
    assert Sky().refusals(replace(job, dry=True)) == []
    monkeypatch.setenv("A_MISSING_KEY", "there")
    assert Sky().refusals(job) == []


def test_without_skypilot_the_way_by_hand_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PenstockError, match=r"SkyPilot is not installed.*--dry-run"):
        Sky().submit(job_of("sky"))


def test_a_machine_writes_the_files_of_the_run_and_starts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def smooth(logits, targets):\n\treturn '$HOME `id` \\\\n'  \n# no end of line"
    Path("my_loss.py").write_text(code)
    task = yaml.safe_load(Sky().text(job_of("sky", f"train.loss={tmp_path}/my_loss.py:smooth")))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "penstock"
    program.write_text('#!/bin/sh\necho "$PWD $* $PENSTOCK_NODE"\n')
    program.chmod(0o755)
    env = {"HOME": str(tmp_path / "machine"), "SKYPILOT_NODE_RANK": "3"}
    env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    (tmp_path / "machine").mkdir()
    said = subprocess.run(
        ["bash", "-c", task["run"]], env=env, capture_output=True, text=True, check=True
    ).stdout.split()
    folder = tmp_path / "machine" / "penstock-run-3"  # nodes of a Slurm share their home
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    assert said == [str(folder), "train", "run.toml", f"node-3-{boot}"]
    assert (folder / "my_loss.py").read_text() == code
    assert 'loss = "my_loss.py:smooth"' in (folder / "run.toml").read_text()


@pytest.mark.parametrize(
    ("record", "phase", "words"),
    [
        ({"status": "PENDING"}, "queued", "waits for SkyPilot's controller"),
        (
            {"status": "STARTING", "details": "no capacity in us-east-1a"},
            "queued",
            "machines are being rented: no capacity in us-east-1a",
        ),
        (
            {"status": "RUNNING", "infra": "AWS (us-east-1)", "recovery_count": 2},
            "running",
            "runs on AWS (us-east-1), recovered 2 times",
        ),
        (
            {"status": "RUNNING", "infra": "-", "recovery_count": 1},
            "running",
            "runs, recovered 1 time",
        ),
        ({"status": "RECOVERING"}, "running", "machines were lost; others are being rented"),
        ({"status": "SUCCEEDED"}, "ended", "ended: done"),
        ({"status": "CANCELLED"}, "ended", "ended: cancelled"),
        (
            {"status": "FAILED_NO_RESOURCE", "failure_reason": "none left"},
            "ended",
            "ended: failed no resource: none left",
        ),
        (
            {"status": "FAILED_PRECHECKS", "failure_reason": "Hint:\n \x1b[1msky check\x1b[0m"},
            "ended",
            "ended: failed prechecks: Hint: sky check",
        ),
        ({"status": "NEW_WORD"}, "unknown", "SkyPilot calls it NEW_WORD"),
    ],
)
def test_the_state_of_a_managed_job(record, phase, words):
    state = describe(record)
    assert (state.phase, state.words) == (JobPhase(phase), words)
