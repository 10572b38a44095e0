"""A real Slurm for all tests of this folder, and runs for it. `make test-slurm` runs them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import slurm_lab
from penstock.run.folder import RunFolder
from slurm_lab import LOSS, SlurmLab, SlurmRun, pace_file

BATCH = 8  # samples in a step


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    if why := slurm_lab.missing():
        pytest.skip(f"no Slurm here: {why}")
    with SlurmLab(tmp_path_factory.mktemp("slurm")).up() as lab:
        yield lab


@pytest.fixture
def lab(slurm: SlurmLab) -> Iterator[SlurmLab]:
    """The Slurm with all nodes idle."""
    slurm.clear()
    yield slurm
    slurm.clear()


@pytest.fixture
def submitted(
    lab: SlurmLab, tmp_path: Path, run_file: Callable[..., Path]
) -> Iterator[Callable[..., SlurmRun]]:
    """submitted(name, env, **fields): a run on two nodes of the Slurm, not yet submitted."""
    made: list[SlurmRun] = []

    def make(name: str, env: dict[str, str] | None = None, **fields: Any) -> SlurmRun:
        values = {
            "cluster.launcher": "slurm",
            "cluster.nodes": 2,
            "cluster.accelerators": 1,
            "cluster.wait": "60 s",
            "train.steps": 100_000,
            "train.loss": f"{tmp_path / f'{name}_loss.py'}:paced",
            "evaluate.every": "never",
            "guard.checkpoint": "100 steps",
            "guard.fast": "5 steps",
            "guard.grace": "10 s",
            "guard.restarts": 20,
        } | fields
        file = run_file(name, **values)
        (tmp_path / f"{name}_loss.py").write_text(LOSS.format(pace=str(pace_file(file))))
        folder = RunFolder(tmp_path / "runs" / name)
        folder.audit.mkdir(parents=True)
        run = SlurmRun(lab, file, folder, **(env or {}))
        run.pace(0.2)
        made.append(run)
        return run

    yield make
    for run in made:
        run.close()
