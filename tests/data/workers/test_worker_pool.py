"""Stages run only what is missing, and a dead worker is reported."""

import multiprocessing
import os
from pathlib import Path

import pytest

from penstock.data.format.columns import write_columns
from penstock.data.workers.pool import Task, run_stage
from penstock.errors import PenstockError, RunFailed

KILLED = 9


def die() -> dict[str, object]:
    if multiprocessing.parent_process():
        os._exit(KILLED)
    raise AssertionError("not in a worker")


def test_a_dead_worker_is_reported(tmp_path: Path) -> None:
    tasks = [Task(tmp_path / str(n), die, ()) for n in range(2)]  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="A worker process died"):
        run_stage("stage", tasks, workers=2)
    with pytest.raises(PenstockError, match="workers is 0"):
        run_stage("stage", tasks, workers=0)


def test_progress_counts_tasks_that_were_done_before(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    write_columns(tmp_path / "0", {})
    tasks = [Task(tmp_path / str(n), dict, ()) for n in range(2)]
    run_stage("stage", tasks, 1, lambda *what: seen.append(what))
    assert seen == [("stage", 1, 2), ("stage", 2, 2)]
