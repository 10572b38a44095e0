"""Submitting, leaving, stopping and being refused, on a real Slurm; strangers on its network."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_lab import PATIENCE_S, ROOT, SlurmLab, SlurmRun

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

MakeRun = Callable[..., SlurmRun]


def test_stop_saves_and_stop_now_cancels_and_neither_leaves_a_process(submitted: MakeRun) -> None:
    run = submitted("stopped")
    lab = run.lab
    run.train()
    run.until_on("n1", "n2")
    assert "asked 'stopped' to save and stop" in run.penstock("stop")
    assert run.ends() == 0, str(run)
    assert run.events("ended")[-1].payload["result"] == "stopped"
    assert lab.queue() == {}
    assert lab.processes() == {}
    first, done = run.job, run.reached()

    run.train()  # a job of its own, which goes on
    run.until_step(done + 10)
    assert run.job != first
    assert min(step for number, _, step in run.curve() if number == 1) == done + 1
    assert "nothing of it is left" in run.penstock("stop", "--now")
    assert [words for words in lab.processes().values() if "train" not in words] == []
    run.ends()  # with 0 if Slurm gave it the time to save
    assert lab.queue() == {}
    assert lab.processes() == {}
    assert "is not running" in run.penstock("stop", code=2)


def test_a_closed_terminal_does_not_stop_the_run_and_the_command_attaches_again(
    submitted: MakeRun,
) -> None:
    run = submitted("left")
    command, terminal = run.train_in_terminal()
    run.until_on("n1", "n2")
    job, done = run.job, run.reached()
    os.close(terminal)  # the kernel sends SIGHUP
    assert command.wait(PATIENCE_S) != 0
    run.until_step(done + 20)
    assert run.lab.queue(job)[job][0] == "RUNNING"
    run.train()
    run.lab.until(lambda: f"attached to job {job}" in run.shown.read_text(), "attached")
    assert list(run.lab.queue()) == [job]
    assert "running" in run.penstock("status")
    run.penstock("stop")
    assert run.ends() == 0, str(run)


def test_a_name_is_for_one_run(submitted: MakeRun, tmp_path: Path) -> None:
    run = submitted("name")
    run.train()
    run.until_on("n1", "n2")
    other = run.lab.penstock("train", str(run.file), "train.seed=5", code=2)
    assert f"job {run.job} of this name is running with another run file" in " ".join(other.split())
    elsewhere = run.lab.penstock("train", str(run.file), f"dir={tmp_path / 'other'}", code=2)
    assert 'name = "name": job' in elsewhere
    assert "another run folder" in " ".join(elsewhere.split())
    checked = run.lab.penstock("check", str(run.file), f"dir={tmp_path / 'other'}", code=2)
    assert "another run folder" in " ".join(checked.split())
    assert not (tmp_path / "other").exists()
    assert list(run.lab.queue()) == [run.job]


def test_a_run_starts_in_the_allocation_that_the_command_is_given_in(submitted: MakeRun) -> None:
    run = submitted("inside", **{"train.steps": 60})
    run.pace(0)
    lab = run.lab
    held = hold_two_nodes(lab)
    run.train(SLURM_JOB_ID=held)
    assert run.ends() == 0, str(run)
    assert run.job == held
    assert run.report()["steps"] == 60
    assert lab.queue()[held][0] == "RUNNING"  # it is its owner's
    lab.until(lambda: lab.processes() == {}, "nothing is left of the run")


def hold_two_nodes(lab: SlurmLab) -> str:
    """Return an allocation of two nodes."""
    return lab.do("salloc", "-N2", "--exclusive", "--no-shell").split()[-1]


@pytest.mark.parametrize("verb", ["stop", "stop --now"])
def test_a_run_in_an_allocation_is_stopped_and_the_allocation_stays(
    submitted: MakeRun, verb: str
) -> None:
    run = submitted("halted")
    lab = run.lab
    held = hold_two_nodes(lab)
    run.train(SLURM_JOB_ID=held)
    run.until_on("n1", "n2")
    run.penstock(*verb.split())
    run.ends()
    assert lab.queue()[held][0] == "RUNNING"
    lab.until(lambda: lab.processes() == {}, "nothing is left of the run")


def test_variables_of_an_outer_job_are_no_part_of_the_run(submitted: MakeRun) -> None:
    """Of a job that has ended, and of a live job of one node."""
    stale = {
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NTASKS": "7",
        "SLURM_NTASKS_PER_NODE": "7",
        "SLURM_JOB_NODELIST": "gone[1-9]",
        "SLURM_MEM_PER_CPU": "999999",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_PROCID": "3",
        "SLURM_EXACT": "1",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_ARRAY_INX": "0-5",
        "PMI_RANK": "3",
    }
    run = submitted("stale", **{"train.steps": 40})
    run.pace(0)
    run.train(SLURM_JOB_ID="424242", **stale)
    assert run.ends() == 0, str(run)
    assert run.report()["ranks"] == 2

    lab = run.lab
    outer = submitted("outer", **{"train.steps": 40})
    outer.pace(0)
    words = [sys.executable, "-m", "penstock", "train", str(outer.file)]
    lab.do("srun", "-N1", "-w", "n4", "--mem=100", "--exclusive", *words)
    assert outer.report()["steps"] == 40
    assert outer.report()["ranks"] == 2
    lab.until(lambda: lab.processes() == {}, "nothing is left of it")


def test_what_slurm_would_refuse_is_refused_before_it_is_queued(
    submitted: MakeRun, tmp_path: Path
) -> None:
    run = submitted("refused")
    for field, value, said in (
        ("cluster.slurm.partition", "mian", 'cluster.slurm.partition = "mian": Slurm has no mian'),
        ("cluster.nodes", "5", "cluster.nodes = 5: partition main has 4 nodes"),
        ("cluster.slurm.constraint", "h100", 'cluster.slurm.constraint = "h100"'),
        ("guard.durable", "s3://runs/x", 'guard.durable = "s3://runs/x": cannot be reached'),
    ):
        for verb in ("check", "train"):
            told = run.lab.penstock(verb, str(run.file), f"{field}={value}", code=2)
            assert said in " ".join(told.split())
    assert run.lab.queue() == {}
    assert not run.folder.exists()


def open_ports(lab: SlurmLab, node: str) -> list[int]:
    """Return the ports that a run opens to the network on a node."""
    found = []
    for line in lab.do("ss", "-ltnpH", host=node).splitlines():
        address, _, port = line.split()[3].rpartition(":")
        pids = re.findall(r"pid=([0-9]+)", line)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids]
        ours = any(words[1:2] == [b"-m"] and b"penstock" in words[2] for words in commands)
        if ours and not address.startswith("127."):
            found.append(int(port))
    return found


def test_a_process_without_the_secret_cannot_join_or_read(
    submitted: MakeRun, lab: SlurmLab
) -> None:
    """A stranger with the network of a node that is not in the job, and another user's process."""
    run = submitted("secret")
    run.train()
    attempt = run.until_on("n1", "n2")
    doors = [
        (f"10.77.0.{node[1]}", port) for node in ("n1", "n2") for port in open_ports(lab, node)
    ]
    assert [address for address, _ in doors] == ["10.77.0.1", "10.77.0.2"]  # one each
    for mode in ("store", "gloo", "host"):
        code = f"import stranger; print([stranger.{mode}(*door) for door in {doors}])"
        path = f"{ROOT / 'src'}:{ROOT / 'tests/hostile'}"
        quiet = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
        told = lab.do(sys.executable, "-c", code, host="n4", PYTHONPATH=path, **quiet)
        assert told.splitlines()[0] == "['', '']", told
    assert {str(e.payload["node"]) for e in run.events("host_came")} <= {"n1", "n2"}
    run.until(lambda: bool(run.events("strangers")), "the strangers are on record")
    assert not [e for e in run.events("mustered") if e.attempt is not None and e.attempt > attempt]

    (secret,) = run.folder.path.rglob("secret/000001")
    assert secret.stat().st_mode & 0o077 == 0
    word = secret.read_text()
    shown = lab.do("scontrol", "show", "job", run.job) + lab.do("squeue", "-o", "%all")
    shown += lab.do("scontrol", "write", "batch_script", run.job, "-")
    shown += "".join(lab.processes().values())
    assert word not in shown
    for path in run.folder.path.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o077:
            assert word.encode() not in path.read_bytes(), path
