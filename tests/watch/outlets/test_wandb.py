"""Runs in Weights & Biases, with its own client against a local server, online and offline."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.run.folder import RunFolder
from penstock.watch.facts.deliveries import run_id
from penstock.watch.outlets.wandb_log import check, entity_project
from tracked_launches import follow, launched, logged_folder
from wandb_server import Wandb, wandb_server


@pytest.fixture
def server() -> Iterator[Wandb]:
    with wandb_server() as made:
        yield made


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file, **{"log.wandb": "team/project"})


def test_a_resumed_run_continues_the_same_wandb_run(folder: RunFolder, server: Wandb) -> None:
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, -0.5, 1.0)}
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", rewards=rewards)
    said = follow(folder, 0, 0, server.env)
    (name,) = server.runs
    assert name == run_id(folder)
    assert server.runs[name]["project"] == "project"
    assert server.runs[name]["displayName"] == "logged"
    assert server.steps(name, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5)]
    assert server.steps(name, "rewards/chosen") == [(1, 0.0), (2, 0.5), (3, 0.5)]
    assert server.steps(name, "rewards/margin") == [(1, 0.0), (2, 0.25), (3, 1.0)]
    assert server.steps(name, "rewards/accuracy") == [(1, 0.0), (2, 0.75), (3, 1.0)]
    assert server.exits[name] == 1
    assert [(a["title"], a["severity"]) for a in server.alerts] == [("logged: crash", "ERROR")] * 2
    assert said.startswith("wandb: ")

    # Step 3 is made again and comes out the same, step 2's batch was left out.
    launched(folder, 1, {2: 4.25, 3: 3.5, 4: 3.0}, "done", t=2000.0)
    follow(folder, 4, 1, server.env)
    assert list(server.runs) == [name]
    assert name in server.resumed
    assert server.steps(name, "train/loss")[3:] == [(2, 4.25), (3, 3.5), (4, 3.0)]
    assert server.summary[name]["status"] == "done"
    assert server.summary[name]["rank_s/compute"] > 0
    assert server.exits[name] == 0


@pytest.mark.slow
def test_off_line_files_are_read_back_by_the_client_itself(
    folder: RunFolder, server: Wandb
) -> None:
    launched(folder, 0, {1: 5.0, 2: 4.0}, "done")
    said = follow(folder, 0, 0, {"WANDB_MODE": "offline", "WANDB_API_KEY": ""})
    assert "(offline)" in said
    assert not server.runs
    (kept,) = folder.path.glob("wandb/offline-run-*")
    wandb = [sys.executable, "-c", "from wandb.cli.cli import cli; cli()", "sync", str(kept)]
    env = os.environ | server.env
    subprocess.run(wandb, env=env, cwd=folder.path, check=True, timeout=250)
    name = run_id(folder)
    assert server.steps(name, "train/loss") == [(1, 5.0), (2, 4.0)]


def test_a_server_that_is_not_there_does_not_stop_the_process(folder: RunFolder) -> None:
    """It says so; what the run does is not its matter."""
    launched(folder, 0, {1: 5.0}, "done")
    env = {
        "WANDB_BASE_URL": "http://127.0.0.1:1",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_MODE": "online",
        "WANDB_INIT_TIMEOUT": "3",
        "WANDB__INIT_TIMEOUT": "3",
    }
    assert "wandb: " in follow(folder, 0, 0, env)


def test_mistakes_that_the_client_would_refuse_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check("p", {"WANDB_MODE": "offline"})
    check("p", {"WANDB_API_KEY": "x" * 40})
    with pytest.raises(PenstockError, match=r"no API key.*WANDB_MODE=offline"):
        check("p", {"NETRC": "/nowhere"})
    for wrong in ("a/b/c", "", "a/", "a b#c", "x" * 129):
        with pytest.raises(PenstockError, match="no name of a project"):
            entity_project(wrong)
    assert entity_project("team/p") == ("team", "p")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PenstockError, match=r"pip install 'penstock\[wandb\]'"):
        check("p", {"WANDB_MODE": "offline"})


def test_a_fresh_run_of_the_same_name_has_another_id(folder: RunFolder) -> None:
    launched(folder, 0, {1: 5.0}, "done")
    first = run_id(folder)
    launched(folder, 1, {2: 5.0}, "done", t=2000.0)
    assert run_id(folder) == first
    (folder.journal / "supervisor.events").unlink()
    launched(folder, 2, {1: 5.0}, "done", t=3000.0)
    assert run_id(folder) != first
