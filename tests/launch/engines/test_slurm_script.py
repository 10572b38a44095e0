"""The batch script says what the run file says, and bash reads it."""

import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.launch.engines.engine import JobSpec
from penstock.launch.engines.slurm_script import (
    allocation_script,
    batch_script,
    notice_s,
    options,
    slurm_time,
)

MakeJob = Callable[..., JobSpec]


def test_an_allocation_outlives_its_nodes_and_saves_before_its_end(job: MakeJob) -> None:
    made = job("guard.spares=1", "guard.grace=20 s", "cluster.slurm.time=90 min")
    given = list(options(made, {}))
    for option in (
        "--nodes=3",
        "--no-kill",
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@50",
        "--time=1:30:00",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
    ):
        assert option in given
    assert not any(option.startswith("--array") for option in given)
    script = batch_script(made, {})
    assert "srun --no-kill --kill-on-bad-exit=0 --wait=0" in script
    assert "USR1" not in script


def test_more_than_half_of_an_allocation_begins_and_its_last_nodes_end_an_orphan(
    job: MakeJob,
) -> None:
    four = batch_script(job("cluster.nodes=4"), {})
    assert "export PENSTOCK_LEAST_NODES=3" in four
    assert 'scancel "$job"' in four
    elastic = batch_script(job("cluster.nodes=4", "cluster.slurm.elastic=true"), {})
    assert "PENSTOCK_LEAST_NODES" not in elastic
    assert 'scancel "$job"' not in elastic
    # The allocation is its owner's.
    assert 'scancel "$job"' not in allocation_script(job("cluster.nodes=4"))


def test_an_elastic_run_is_an_array_of_whole_nodes(job: MakeJob) -> None:
    made = job("cluster.slurm.elastic=true", "guard.spares=2")
    given = list(options(made, {}))
    assert "--array=0-3" in given
    assert "--nodes=1" in given
    assert "--exclusive" in given
    assert "--no-kill" not in given
    script = batch_script(made, {})
    assert 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in script
    assert 'scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"' in script


def test_what_the_user_sets_is_there_and_their_own_lines_are_last(job: MakeJob) -> None:
    made = job(
        "cluster.slurm.partition=a",
        "cluster.slurm.qos=b",
        "cluster.slurm.constraint=h100&ib",
        "cluster.slurm.gpus=gpu:8",
        'cluster.slurm.lines=["--mem=5G", "-x n7"]',
        'cluster.slurm.setup=["module load cuda"]',
    )
    given = list(options(made, {"account": "site", "qos": "not this"}))
    assert "--partition=a" in given
    assert "--qos=b" in given
    assert "--account=site" in given
    assert "--constraint='h100&ib'" in given
    assert "--gres=gpu:8" in given
    assert given[-2:] == ["--mem=5G", "-x n7"]
    script = batch_script(made, {})
    assert script.index("module load cuda") < script.index("srun")


def test_gpus_are_asked_for_where_the_cluster_has_them(job: MakeJob) -> None:
    whole = list(options(job("cluster.use=H100", "cluster.accelerators=all"), {}))
    assert "--gres=gpu:8" in whole
    assert "--exclusive" in whole
    some = list(options(job("cluster.use=H100", "cluster.accelerators=4"), {}))
    assert "--gres=gpu:4" in some
    assert "--exclusive" not in some


@pytest.mark.parametrize("by", ["apptainer", "pyxis"])
def test_containers_see_the_run_folder_and_the_working_folder(job: MakeJob, by: str) -> None:
    made = job("cluster.slurm.container=image.sif", f"cluster.slurm.container_by={by}")
    script = batch_script(made, {})
    assert "image.sif" in script
    assert f"penstock train {made.run_file}" in script
    assert str(made.folder) in script
    assert ("--container-image=image.sif" in script) == (by == "pyxis")
    assert ("apptainer exec" in script) == (by == "apptainer")


@pytest.mark.parametrize("elastic", ["true", "false"])
@pytest.mark.parametrize("folder", ["run", "with space", "qu'ote", 'dou"ble $HOME `x`'])
def test_bash_reads_it_whatever_the_folder_is_called(
    job: MakeJob, folder: str, elastic: str
) -> None:
    made = job(f"cluster.slurm.elastic={elastic}", folder=folder)
    for script in (batch_script(made, {}), allocation_script(made)):
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr
        body = script[script.index("export ") : script.index("srun ")]
        said = subprocess.run(
            ["bash", "-c", f'{body}\nbash -c "$node"'], text=True, capture_output=True
        )
        # The file is not there, and the message names it as it is.
        assert str(made.run_file) in said.stderr
        assert said.returncode == 2


@settings(max_examples=50)
@given(st.floats(1, 40 * 86400))
def test_a_time_limit_is_rounded_up_to_minutes(seconds: float) -> None:
    days, _, clock = slurm_time(seconds).rpartition("-")
    hours, minutes, zero = map(int, clock.split(":"))
    written = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60
    assert zero == 0
    assert hours < 24
    assert seconds <= written < seconds + 60 or written == 60


def test_the_notice_leaves_time_to_save(job: MakeJob) -> None:
    assert notice_s(job("guard.grace=2 min").run) >= 120
