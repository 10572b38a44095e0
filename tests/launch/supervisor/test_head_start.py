"""The fork server that starts with the command: taken by the launch, or ended with it."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.launch import start as launch
from penstock.launch.prepare.listener import Listener
from penstock.launch.supervisor import environment, head_start
from penstock.launch.supervisor.fork_client import SERVER, ForkClient, process_state
from penstock.launch.supervisor.preload import PreloadClient
from penstock.meter import devices
from penstock.run.load import load
from whole_runs import FIELDS, MakeFile


def alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")


def servers_of(parent: int) -> list[int]:
    """Return the fork servers that a process has asked for and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if SERVER.encode() in words and str(parent).encode() in words:
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The servers that this process starts; they import little, and come from no other process."""
    monkeypatch.delenv("PENSTOCK_PRELOAD", raising=False)
    monkeypatch.setattr(head_start, "modules", lambda device, compiled: ("json",))
    return counted(monkeypatch)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pids: list[int] = []
    real = ForkClient._start_server

    def start(client: ForkClient) -> None:
        real(client)
        pids.append(client._process.pid)

    monkeypatch.setattr(ForkClient, "_start_server", start)
    return pids


def needed(accelerators: int = 2) -> dict[str, str]:
    """Return the environment that ranks of such a launch have."""
    return environment.for_fork_server(devices.find().threads(accelerators))


def test_the_launch_takes_the_server_that_was_started(
    started: list[int], run_file: MakeFile
) -> None:
    with head_start.begin(load(run_file(**{"cluster.accelerators": 2}))) as early:
        client = early.take(needed(), ("json",))
    assert len(started) == 1
    assert alive(started[0])  # it is the launch's now
    client.close()
    assert not alive(started[0])


@pytest.mark.parametrize("wrong", ["threads", "modules"])
def test_a_wrong_guess_costs_another_server(
    started: list[int], wrong: str, run_file: MakeFile
) -> None:
    with head_start.begin(load(run_file(**{"cluster.accelerators": 2}))) as early:
        env = needed() | ({"OMP_NUM_THREADS": "77"} if wrong == "threads" else {})
        client = early.take(env, ("json", *(["csv"] if wrong == "modules" else [])))
        assert client.serves(env, ("json",))
    assert [alive(pid) for pid in started] == [False, True]
    client.close()


def test_a_launch_that_is_refused_ends_it(started: list[int], run_file: MakeFile) -> None:
    def refuse() -> None:
        with head_start.begin(load(run_file())):
            assert [alive(pid) for pid in started] == [True]
            raise PenstockError("refused")

    with pytest.raises(PenstockError, match="refused"):
        refuse()
    assert [alive(pid) for pid in started] == [False]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cluster.accelerators": 2},
        {"layout.replicate": 1, "layout.shard": 2},
        {"cluster.nodes": 2, "cluster.wait": "1 s", "cluster.accelerators": 1},  # one of them came
    ],
)
def test_a_run_needs_one_server(
    fields: dict[str, object],
    run_file: MakeFile,
    warm: PreloadClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guess is right for what the run file says: nobody imports torch twice."""
    pids = counted(monkeypatch)
    launch.start(load(run_file(**FIELDS | {"train.steps": 2} | fields)), listener=Listener())
    assert len(pids) == 1


def test_a_refused_command_leaves_no_process(run_file: MakeFile) -> None:
    path = run_file(**{"data.dataset": "/nowhere/at/all"})
    env = {name: value for name, value in os.environ.items() if name != "PENSTOCK_PRELOAD"}
    command = [sys.executable, "-m", "penstock", "train", str(path)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == PenstockError.exit_code, said
    assert "/nowhere/at/all" in said
    assert servers_of(process.pid) == []


@pytest.mark.parametrize("module", ["penstock.cli.train", "penstock.launch.start"])
def test_the_supervisor_imports_no_torch_before_the_server_does(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_devices_are_guessed_as_torch_finds_them() -> None:
    guess, found = devices.guess(), devices.find()
    assert (guess.kind, guess.count) == (found.kind, found.count)


def test_no_gpu_is_visible_where_none_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.visible_gpus() == 0
