"""A cluster file says where a run starts; where both say it, the run file does."""

from pathlib import Path

import pytest

from penstock.run.clusters.apply import with_cluster_file
from penstock.run.load import load_table
from penstock.run.save import to_table
from penstock.run.schema.run import Run

FILE = """\
nodes = 8
launcher = "slurm"
[accelerator]
name = "H100"
[slurm]
partition = "gpu"
account = "lab"
time = "2 h"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    return file


def run(*overrides: str) -> Run:
    return load_table({"name": "small", "model": {"preset": "llama-3m"}}, overrides)


def test_what_the_run_file_leaves_out_comes_from_the_cluster_file(cluster: Path) -> None:
    found = with_cluster_file(run(f"cluster.use={cluster}", "cluster.slurm.account=mine"))
    assert found.cluster.launcher == "slurm"
    assert found.cluster.nodes == 8
    assert found.cluster.slurm.partition == "gpu"
    assert found.cluster.slurm.account == "mine"
    assert found.cluster.slurm.time == 7200


def test_the_run_file_wins_even_with_a_default(cluster: Path) -> None:
    asked = run(f"cluster.use={cluster}", "cluster.launcher=local", "cluster.nodes=1")
    found = with_cluster_file(asked)
    assert found.cluster.launcher == "local"
    assert found.cluster.nodes == 1


def test_a_resolved_run_stays_what_it_is(cluster: Path) -> None:
    found = with_cluster_file(run(f"cluster.use={cluster}"))
    assert with_cluster_file(load_table(to_table(found))) == found


@pytest.mark.parametrize("use", ["here", "H100"])
def test_no_file_changes_nothing(use: str) -> None:
    asked = run(f"cluster.use={use}")
    assert with_cluster_file(asked) is asked
