"""`elastic = true` on a real Slurm: one job for each node, which come and go by themselves."""

from collections.abc import Callable

import pytest

from slurm_lab import SlurmRun

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

MakeRun = Callable[..., SlurmRun]


def test_it_grows_as_nodes_become_free_and_only_what_died_is_queued_again(
    submitted: MakeRun,
) -> None:
    run = submitted(
        "elastic",
        **{"cluster.nodes": 4, "cluster.slurm.elastic": True, "cluster.wait": "2 s"},
    )
    lab = run.lab
    busy = {
        node: lab.do(
            "sbatch", "--parsable", "-w", node, "--exclusive", "-o/dev/null", "--wrap=sleep 3600"
        ).strip()
        for node in ("n2", "n3", "n4")
    }
    lab.until(lambda: {lab.queue()[job][0] for job in busy.values()} == {"RUNNING"}, "busy nodes")
    run.train()
    attempt, there = run.until_on("n1"), ["n1"]
    for node, job in busy.items():
        lab.do("scancel", job)
        there.append(node)
        attempt = run.until_on(*there, after=attempt)
    assert len(lab.queue(run.job)) == 4

    tasks = {nodes: task for task, (_, nodes) in lab.queue(run.job).items()}
    victim = next(node for node in ("n4", "n3") if node != run.leader())
    rest = [node for node in there if node != victim]
    lab.kill(victim)
    attempt = run.until_on(*rest, after=attempt)
    lab.until(lambda: lab.of_job(tasks[victim])["Restarts"] == "1", "its job is queued again")
    assert [lab.of_job(tasks[node])["Restarts"] for node in rest] == ["0", "0", "0"]
    lab.revive(victim)
    run.until_on(*there, after=attempt)
    assert {task: state for task, (state, _) in lab.queue(run.job).items()} == dict.fromkeys(
        tasks.values(), "RUNNING"
    )

    assert "asked" in run.penstock("stop")
    assert run.ends() == 0, str(run)
    assert run.events("ended")[-1].payload["result"] == "stopped"
    lab.until(lambda: lab.queue() == {}, "its jobs are gone")
    assert lab.processes() == {}


def test_tasks_that_still_wait_when_the_run_has_ended_are_dropped(submitted: MakeRun) -> None:
    run = submitted(
        "short",
        **{
            "cluster.nodes": 4,
            "cluster.slurm.elastic": True,
            "cluster.wait": "2 s",
            "train.steps": 40,
        },
    )
    run.pace(0)
    lab = run.lab
    busy = lab.do(
        "sbatch", "--parsable", "-N3", "--exclusive", "-o/dev/null", "--wrap=sleep 3600"
    ).strip()
    lab.until(lambda: lab.queue()[busy][0] == "RUNNING", "busy nodes")
    run.train()
    assert run.ends() == 0, str(run)
    lab.until(lambda: set(lab.queue()) == {busy}, "its other tasks are gone")
    assert run.events("ended")[-1].payload["result"] == "done"
