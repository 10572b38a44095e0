"""What Slurm would refuse is refused before it is asked, by field, value and fix.

The answers of Slurm are what Slurm 22.05 printed; `make test-slurm` asks a real one.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.launch.engines.engine import JobSpec
from penstock.launch.engines.slurm_refusals import parse_partitions, refusals_of
from penstock.launch.engines.slurm_state import SlurmFailed

MakeJob = Callable[..., JobSpec]
PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED \
Nodes=n[1-4] State=UP TotalCPUs=8 TotalNodes=4 TRES=cpu=8,mem=16000M,node=4,billing=8
PartitionName=short AllowGroups=ALL Default=NO QoS=N/A MaxNodes=1 MaxTime=1-00:10:00 \
Nodes=n[1-2] State=UP TotalCPUs=4 TotalNodes=2 TRES=cpu=4
PartitionName=closed Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN TotalNodes=2
"""


class Answers:
    """Slurm as it answered."""

    def __init__(self, squeue: str = "", sbatch: str = "") -> None:
        self.squeue, self.sbatch = squeue, sbatch

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        if words[0] == "scontrol":
            return PARTITIONS
        if words[0] == "squeue":
            return self.squeue
        assert words[:2] == ("sbatch", "--test-only")
        assert stdin
        if self.sbatch:
            raise SlurmFailed(self.sbatch)
        return ""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cluster.slurm.partition=mian"], 'partition = "mian": Slurm has no mian; Did you mean'),
        (["cluster.slurm.partition=closed"], 'partition = "closed": it is DOWN'),
        (["cluster.nodes=5"], "cluster.nodes = 5: partition main has 4 nodes for one job"),
        (["cluster.nodes=4", "guard.spares=1"], "cluster.nodes = 4 and guard.spares = 1"),
        (["cluster.slurm.partition=short"], "cluster.nodes = 2: partition short has 1 nodes"),
        (
            ["cluster.slurm.partition=short", "cluster.nodes=1", "cluster.slurm.time=2 days"],
            'cluster.slurm.time = "2 d 00 h": partition short allows',
        ),
        (["cluster.slurm.time=1 min"], "the run is told to save 60 s before the end"),
    ],
)
def test_refused(job: MakeJob, overrides: list[str], words: str) -> None:
    [said] = refusals_of(job(*overrides), "#!/bin/bash\n", {}, Answers())
    assert words in said


def test_an_elastic_run_may_ask_for_all_nodes_of_a_partition(job: MakeJob) -> None:
    elastic = job("cluster.slurm.partition=short", "cluster.slurm.elastic=true")
    assert refusals_of(elastic, "#!/bin/bash\n", {}, Answers()) == []


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "constraint"),
        ("allocation failure: Invalid account or account/partition combination", "account"),
        ("allocation failure: Invalid qos specification", "qos"),
    ],
)
def test_what_only_sbatch_knows_is_said_of_its_field(job: MakeJob, answer: str, field: str) -> None:
    made = job(f"cluster.slurm.{field}=mine")
    [said] = refusals_of(made, "#!/bin/bash\n", {}, Answers(sbatch=answer))
    assert said.startswith(f'cluster.slurm.{field} = "mine": sbatch would refuse the run: Invalid')


def test_a_name_that_another_run_has_in_the_queue(job: MakeJob) -> None:
    made = job()
    own, other = str(made.run_file.parent), "/elsewhere/small"
    assert refusals_of(made, "#!\n", {}, Answers(squeue=f"7|{own}\n")) == []
    [said] = refusals_of(made, "#!\n", {}, Answers(squeue=f"7|{other}\n"))
    assert 'name = "small": job 7 has this name and another run folder (/elsewhere/small)' in said


def test_without_slurm(job: MakeJob) -> None:
    def ask(*words: str, stdin: str | None = None) -> str:
        raise SlurmFailed("no scontrol on this machine")

    [said] = refusals_of(job(), "#!\n", {}, ask)
    assert refusals_of(replace(job(), dry=True), "#!\n", {}, ask) == []  # can be read anywhere
    assert said.startswith('cluster.launcher = "slurm": no scontrol on this machine; give the')


def test_limits_of_partitions() -> None:
    found = parse_partitions(PARTITIONS)
    assert found["short"].most_s == 24 * 3600 + 600
    assert found["main"].most_s == float("inf")
    assert found["main"].default
