"""A run as a step of an allocation: its session tells that it lives, and ends when it is cancelled.

Slurm's commands are scripts here: `squeue` prints the file `steps`, `srun` takes as long as it
likes to make a step. `make test-slurm` has the real ones.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import RunFailed
from penstock.launch.engines.engine import JobPhase, JobSpec
from penstock.launch.engines.slurm import Slurm
from penstock.run.load import load_table

ALLOCATION = "77"
SQUEUE = """#!/bin/bash
case "$*" in
*" -s "*) cat {steps} ;;
*) echo "77|RUNNING|None|4|n[1-4]|N/A" ;;
esac
"""
SCANCEL = """#!/bin/bash
echo "$*" >> {cancelled}
: > {steps}
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The steps that squeue lists, as `NUMBER|NAME`."""
    tools, steps = tmp_path / "tools", tmp_path / "steps"
    tools.mkdir()
    steps.write_text("")
    scripts = {
        "squeue": SQUEUE.format(steps=steps),
        "scancel": SCANCEL.format(steps=steps, cancelled=tmp_path / "cancelled"),
        "srun": "#!/bin/bash\nexec sleep 300\n",
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", ALLOCATION)
    return steps


@pytest.fixture
def job(tmp_path: Path, steps: Path) -> JobSpec:
    (tmp_path / "runs/inside/logs").mkdir(parents=True)
    table = {"name": "inside", "model": {"preset": "llama-3m"}, "dir": str(tmp_path / "runs")}
    table["cluster"] = {"launcher": "slurm", "nodes": 2}
    return JobSpec(load_table(table), tmp_path / "runs/inside/submitted.toml", tmp_path, "a-token")


def soon(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_session_that_waits_for_its_step_is_not_over(job: JobSpec, steps: Path) -> None:
    engine = Slurm()
    submission = engine.submit(job)
    assert submission.job == ALLOCATION
    old = submission.__class__(**{**vars(submission), "submitted": time.time() - 600})
    assert engine.state(old).phase is JobPhase.QUEUED  # however long it takes
    with pytest.raises(RunFailed, match="still ending in allocation 77"):
        engine.submit(job)
    steps.write_text("77.0|other\n77.1|inside\n")
    assert engine.state(old).phase is JobPhase.RUNNING
    engine.cancel(submission)
    assert engine.state(submission).phase is JobPhase.ENDED
    assert (steps.parent / "cancelled").read_text().split() == ["77.1"]


def test_a_run_is_cancelled_before_it_has_a_step(job: JobSpec, steps: Path) -> None:
    engine = Slurm()
    submission = engine.submit(job)
    assert engine.state(submission).phase is JobPhase.QUEUED
    engine.cancel(submission)  # else srun would make the step later
    assert engine.state(submission).phase is JobPhase.ENDED
    assert not (steps.parent / "cancelled").exists()


def test_a_session_that_ended_by_itself_is_over(job: JobSpec, steps: Path) -> None:
    (steps.parent / "tools/srun").write_text("#!/bin/bash\nexit 1\n")
    engine = Slurm()
    submission = engine.submit(job)
    soon(lambda: engine.state(submission).phase is JobPhase.ENDED)
