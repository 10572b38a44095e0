"""Jobs for the tests of engines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.launch.engines.engine import JobSpec
from penstock.run.load import load_table

MakeJob = Callable[..., JobSpec]


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    """job("cluster.nodes=4", …): a job of a small run, as it is submitted from tmp_path."""

    def make(*overrides: str, folder: str = "run") -> JobSpec:
        table = {
            "name": "small",
            "dir": str(tmp_path / folder),
            "model": {"preset": "llama-3m"},
            "cluster": {"launcher": "slurm", "accelerators": 1, "nodes": 2},
        }
        run = load_table(table, overrides)
        return JobSpec(run, run.folder / "submitted.toml", tmp_path / folder, "abc")

    return make
