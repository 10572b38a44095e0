"""Runs through SkyPilot's own command, server and jobs controller, on a real Slurm over ssh.

Each launch takes SkyPilot one to three minutes: it installs itself on the nodes.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.journal.events import HostsAssigned
from penstock.ledger.journal.read import lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from sky_lab import PATIENCE_S, STORE, SkyLab, missing

VENV = Path(os.environ.get("PENSTOCK_SKY", Path(__file__).parents[3] / ".sky")).absolute()
WHY_NOT = missing(VENV)
pytestmark = [
    pytest.mark.sky,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.timeout(3600),
]
RUN = """name = "{name}"
[model]
layers = 2
hidden = 64
heads = 4
ffn = 128
vocab = 4096
[data]
dataset = "stdlib"
sequence = 64
[train]
steps = {steps}
batch_tokens = 512
loss = "{loss}:paced"
[evaluate]
every = "never"
[cluster]
launcher = "sky"
use = "here"
nodes = {nodes}
accelerators = 1
wait = "5 min"
[cluster.sky]
accelerators = "cpu"
infra = "slurm/lab"
spot = false
setup = ["cp {tools}/* ~/sky-user-env/bin/"]
secrets = {secrets}
[guard]
durable = "s3://runs/of-sky"
checkpoint = "20 steps"
"""
LOSS = """import time
from pathlib import Path

from torch.nn.functional import cross_entropy


def paced(logits, targets):
    time.sleep(float(Path({pace!r}).read_text()))
    return cross_entropy(logits, targets, reduction="none")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SkyLab]:
    # Not in pytest's folder: every node has a /tmp of its own.
    folder = Path(tempfile.mkdtemp(prefix="sky-lab-", dir="/var/tmp"))
    try:
        with SkyLab(folder, VENV).up() as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(lab: SkyLab, name: str, nodes: int, steps: int, step_s: float = 0.0) -> Path:
    folder = lab.folder / name
    folder.mkdir()
    (folder / "pace").write_text(str(step_s))  # the nodes see this disk
    (folder / "paced.py").write_text(LOSS.format(pace=str(folder / "pace")))
    file = folder / "run.toml"
    file.write_text(
        RUN.format(
            name=name,
            nodes=nodes,
            steps=steps,
            loss=folder / "paced.py",
            tools=lab.folder / "tools",
            secrets=json.dumps(list(STORE)),
        )
    )
    return file


def train(file: Path) -> list[str]:
    return [sys.executable, "-m", "penstock", "train", str(file)]


def in_bucket(lab: SkyLab, name: str) -> set[str]:
    """Return the checkpoints of a run in the bucket, by another client than the run's."""
    code = (
        "import os, obstore.store;"
        "b = obstore.store.S3Store('runs', endpoint=os.environ['AWS_ENDPOINT_URL'],"
        " client_options={'allow_http': True});"
        f"print(*(o['path'] for page in b.list('of-sky/{name}/') for o in page), sep='\\n')"
    )
    told = lab.do(sys.executable, "-c", code)
    return {part for path in told.split() for part in path.split("/") if part.startswith("step-")}


def test_two_nodes_of_slurm_train_one_run(lab):
    file = written(lab, "two", nodes=2, steps=200)
    lab.do(*train(file), at=file.parent)
    folder = RunFolder(file.parent / "runs" / "two")
    mustered = lines_of(read_events(folder.journal / SUPERVISOR), HostsAssigned)
    hosts = {str(host["node"]).rpartition("-")[0] for one in mustered for host in one.event.hosts}
    assert hosts == {"node-0", "node-1"}
    assert "step-00000200" in in_bucket(lab, "two")
    record = lab.queue()["two"]
    assert (record["status"], record["infra"]) == ("SUCCEEDED", "Slurm (lab)")
    lab.until(lambda: not lab.slurm_jobs(), "SkyPilot gives the nodes back")
    told = lab.do(*train(file), at=file.parent)  # nothing is submitted again
    assert "submitted" not in told
    assert list(lab.queue()) == ["two"]


def test_a_job_that_is_stopped_at_once_gives_its_nodes_back(lab):
    file = written(lab, "slow", nodes=1, steps=300, step_s=1.0)
    shown, where = file.with_suffix(".shown"), ["--dir", str(file.parent / "runs")]
    following = lab.start(*train(file), into=shown)
    try:
        lab.until(lambda: "step-00000020" in in_bucket(lab, "slow"), "a checkpoint in the bucket")
        status = lab.do(sys.executable, "-m", "penstock", "status", "slow", *where)
        assert "runs on Slurm (lab)" in status
        lab.do(sys.executable, "-m", "penstock", "stop", "slow", "--now", *where)
        assert not lab.slurm_jobs()
        assert lab.queue()["slow"]["status"] == "CANCELLED"
        # It ends by itself; well only if the bucket got what the run saved after SkyPilot's TERM.
        assert following.wait(PATIENCE_S) in (0, 1)
    finally:
        if following.poll() is None:
            following.kill()
            following.wait()


def test_what_skypilot_says_against_a_job_is_told_and_leaves_no_run(lab):
    file = written(lab, "nowhere", nodes=1, steps=10)
    file.write_text(file.read_text().replace("slurm/lab", "slurm/gone"))
    shown = file.with_suffix(".shown")
    assert lab.start(*train(file), into=shown).wait(PATIENCE_S) == 1
    told = " ".join(shown.read_text().split())
    assert "error: `sky jobs launch` failed: ValueError: Cluster gone not found in Slurm" in told
    assert not (file.parent / "runs" / "nowhere").exists()
