"""Runs in Trackio's local store, read back through its own API."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.tracker import tracked_run
from penstock.watch.outlets.trackio_log import check
from tracked_launches import follow, launched, logged_folder

# In a process of its own: Trackio reads TRACKIO_DIR when it is imported.
READ = """
import json, sys
import trackio
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps([
    {"name": run.name, "config": run.config, "alerts": run.alerts(),
     "logs": SQLiteStorage.get_logs("project", run.name, run_id=run.id)}
    for run in trackio.Api().runs("project")
], default=str))
"""


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file, **{"log.trackio": "project"})


def stored(store: Path) -> list[dict[str, Any]]:
    """Return the runs of the project, as Trackio reads them."""
    env = os.environ | {"TRACKIO_DIR": str(store), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=env, capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def series(run: dict[str, Any], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in run["logs"] if name in row]


def test_a_resumed_run_continues_the_same_trackio_run(folder: RunFolder, tmp_path: Path) -> None:
    store = tmp_path / "trackio"
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, -0.5, 1.0), 4: (1.0, 0.5, 1.0)}
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", rewards=rewards)
    said = follow(folder, 0, 0, {"TRACKIO_DIR": str(store)})
    assert f"trackio: trackio show --project project ({store})" in said
    launched(folder, 1, {3: 3.5, 4: 3.0}, "done", t=2000.0, rewards=rewards)
    said = follow(folder, 4, 1, {"TRACKIO_DIR": str(store)})
    assert "not everything" not in said
    (run,) = stored(store)
    assert run["name"] == tracked_run(RunView(folder)).unique_name
    assert series(run, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 3.0)]
    assert series(run, "rewards/chosen") == [(1, 0.0), (2, 0.5), (3, 0.5), (4, 1.0)]
    assert series(run, "rewards/margin") == [(1, 0.0), (2, 0.25), (3, 1.0), (4, 0.5)]
    assert series(run, "rewards/accuracy") == [(1, 0.0), (2, 0.75), (3, 1.0), (4, 1.0)]
    assert run["config"]["train"]["batch_tokens"] == 128
    assert sorted(a["title"] for a in run["alerts"]) == ["crash", "crash", "finish"]
    assert run["logs"][-1]["rank_s/compute"] > 0


def test_a_store_that_cannot_be_written_is_reported_once(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "trackio").write_text("in the way")
    launched(folder, 0, {1: 5.0}, "done")
    said = follow(folder, 0, 0, {"TRACKIO_DIR": str(tmp_path / "trackio")})
    assert said.count("trackio: not everything was written") == 1


def test_mistakes_are_refused_at_once() -> None:
    check("project", {})
    for wrong in ("a/b", "..", "a b", "x" * 65):
        with pytest.raises(PenstockError, match="no name of a project"):
            check(wrong, {})
    with pytest.raises(PenstockError, match="TRACKIO_SERVER_URL is set"):
        check("project", {"TRACKIO_SERVER_URL": "http://127.0.0.1:1"})
