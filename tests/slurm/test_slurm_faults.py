"""Nodes that die and time limits that come, on a real Slurm: nothing is lost or done twice."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.drill import audit
from slurm_lab import SlurmLab, SlurmRun

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

BATCH = 8
TIMES = int(os.environ.get("TIMES", "10"))  # time limits of the long test
LIMITED = {"cluster.slurm.time": "60 min", "cluster.slurm.lines": ["--signal=B:TERM@600"]}
NONE_LOST = audit.SampleCounts(lost=0, doubled=0)
MakeRun = Callable[..., SlurmRun]


@pytest.fixture
def store(lab: SlurmLab, tmp_path: Path) -> Iterator[dict[str, str]]:
    with lab.store(tmp_path / "ceph") as found:
        yield found


def kill_and_go_on(run: SlurmRun, node: str, attempt: int) -> int:
    """Kill a node; return the attempt on the others, and tell when it made a new step."""
    rest = [other for other in run.at_work() if other != node]
    done, t = run.reached(), time.time()
    run.lab.kill(node)
    attempt = run.until_on(*rest, after=attempt)
    run.until_step(done + 3)
    new = [at for number, at, step in run.curve() if number == attempt and step > done]
    print(f"\n{node} killed at step {done}: next new step after {min(new) - t:.1f} s")
    return attempt


def test_a_killed_node_is_left_out_with_a_bucket_between_nodes(
    submitted: MakeRun, store: dict[str, str]
) -> None:
    steps = 400
    run = submitted(
        "killed",
        store,
        **{"cluster.nodes": 4, "train.steps": steps, "guard.durable": "s3://runs/killed"},
    )
    run.train()
    attempt = run.until_on("n1", "n2", "n3", "n4")
    job, leader = run.job, run.leader()
    # A node that follows, then the one that leads. The batch script is on n1.
    other = next(node for node in ("n4", "n3", "n2") if node != leader)
    attempt = kill_and_go_on(run, other, attempt)
    if leader != "n1":
        attempt = kill_and_go_on(run, leader, attempt)
    assert run.lab.queue(job)[job][0] == "RUNNING"
    assert run.lab.of_job(job)["Restarts"] == "0"
    run.pace(0)
    assert run.ends() == 0, str(run)
    assert run.report()["steps"] == steps
    assert run.samples(steps, BATCH) == NONE_LOST


def test_the_node_of_the_batch_script_is_killed(submitted: MakeRun) -> None:
    steps = 400
    run = submitted("first", **{"cluster.nodes": 3, "train.steps": steps})
    run.train()
    attempt = run.until_on("n1", "n2", "n3")
    kill_and_go_on(run, "n1", attempt)
    run.pace(0)
    assert run.ends() == 0, str(run)
    assert run.report()["steps"] == steps
    assert run.samples(steps, BATCH) == NONE_LOST


def reach_the_limit(run: SlurmRun, restarts: int) -> None:
    """Let the time limit of a run come near, and wait until its job was queued again.

    Slurm counts limits in minutes and looks every 30 s. So the notice comes ten minutes before the
    limit, and the limit is moved to where the job is.
    """
    run.pace(1.0)  # it has steps left to make
    run.lab.do("scontrol", "update", f"JobId={run.job}", "TimeLimit=10")
    run.lab.until(lambda: int(run.lab.of_job(run.job)["Restarts"]) >= restarts, "queued again")
    run.lab.do("scontrol", "update", f"JobId={run.job}", "TimeLimit=60")


def test_ten_time_limits_end_with_the_undisturbed_weights(submitted: MakeRun) -> None:
    steps = 800
    fields = {"train.steps": steps, **LIMITED}
    calm = submitted("calm", **{"train.steps": steps})
    calm.pace(0)
    calm.train()
    assert calm.ends() == 0, str(calm)

    run = submitted("limits", **fields)
    run.train()
    for count in range(1, TIMES + 1):
        run.pace(0.1)
        run.until_step(run.reached() + 8)
        reach_the_limit(run, count)
    run.pace(0)
    assert run.ends() == 0, str(run)
    assert not run.events("fault"), str(run)
    assert run.report()["weights_hash"] == calm.report()["weights_hash"]
    assert run.samples(steps, BATCH) == NONE_LOST
    assert run.lab.processes() == {}


def test_one_node_saves_before_its_limit_too(submitted: MakeRun) -> None:
    run = submitted("alone", **{"cluster.nodes": 1, "train.steps": 200, **LIMITED})
    run.train()
    run.until_step(8)
    reach_the_limit(run, 1)
    run.pace(0)
    assert run.ends() == 0, str(run)
    assert run.samples(200, BATCH) == NONE_LOST


def test_nodes_without_commands_of_slurm_are_queued_again_by_their_exit_code(
    submitted: MakeRun, tmp_path: Path
) -> None:
    """As in a container: only srun is there, and slurm.conf has RequeueExit=75."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("srun", "bash", "sh", "hostname", "touch", "env", "sleep", "cat"):
        found = next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists())
        (tools / name).symlink_to(found)
    run = submitted(
        "bare",
        **{
            "train.steps": 300,
            **LIMITED,
            "cluster.slurm.setup": [f"export PATH={tools}", "! command -v scontrol scancel"],
        },
    )
    run.train()
    run.until_on("n1", "n2")
    run.until_step(8)
    reach_the_limit(run, 1)
    run.pace(0)
    assert run.ends() == 0, str(run)
    assert run.samples(300, BATCH) == NONE_LOST
