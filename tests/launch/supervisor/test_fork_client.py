"""Processes from the fork server: as `python -m` would start them, never left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import RunFailed
from penstock.launch.supervisor import environment
from penstock.launch.supervisor.fork_client import ForkClient, modules
from penstock.meter.clock import now

LIMIT_S = 60.0
CHILD = """
import json, os, signal, subprocess, sys, threading, time
print(json.dumps({"argv": sys.argv[1:], "rank": os.environ["RANK"], "name": __name__,
    "session": os.getsid(0) == os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS"),
    "term": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
    "heavy": "heavy" in sys.modules}))
print("oops", file=sys.stderr)
what = sys.argv[1]
if what == "wait":
    print("here", flush=True)
    time.sleep(600)
elif what == "brood":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    time.sleep(600 if sys.argv[2] == "wait" else 0)
elif what == "raise":
    raise ValueError("no good")
elif what == "leave":
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ForkClient]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/child.py").write_text(CHILD)
    (tmp_path / "modules/heavy.py").write_text("import os; os.environ['LOADED'] = str(os.getpid())")
    (tmp_path / "modules/first.py").write_text("import heavy")
    path = f"{tmp_path}/modules{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    made = ForkClient({"PYTHONPATH": path, "OMP_NUM_THREADS": "3"}, modules=["first"])
    yield made
    made.close()


def start(client: ForkClient, tmp_path: Path, rank: int, *args: str) -> int:
    return client.start(rank, {"RANK": str(rank)}, ["child", *args], tmp_path / "logs")


def until(done: Callable[[], object], client: ForkClient | None = None) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, "nothing happened"
        client.wait(0.05) if client else time.sleep(0.005)


def said(tmp_path: Path, rank: int, ending: str = "out") -> str:
    file = tmp_path / f"logs/rank-{rank}.{ending}"
    return file.read_text() if file.exists() else ""


def gone(pid: int) -> bool:
    """No such process, or one that only waits to be reaped by somebody else."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_rank_runs_as_python_m_would_with_what_was_imported(
    client: ForkClient, tmp_path: Path
) -> None:
    pid = start(client, tmp_path, 1, "leave", "7")
    until(lambda: client.exit_codes()[1] is not None, client)
    told = json.loads(said(tmp_path, 1))
    assert told == {
        "argv": ["leave", "7"],
        "rank": "1",
        "name": "__main__",
        "session": True,
        "threads": "3",
        "term": True,
        "heavy": True,
    }
    assert said(tmp_path, 1, "err") == "oops\n"
    assert client.exit_codes() == {1: 7}
    assert gone(pid)


@pytest.mark.parametrize(("args", "code"), [(["end"], 0), (["raise"], 1), (["leave", "3"], 3)])
def test_exit_codes(args: list[str], code: int, client: ForkClient, tmp_path: Path) -> None:
    start(client, tmp_path, 0, *args)
    until(lambda: client.exit_codes()[0] is not None, client)
    assert client.exit_codes() == {0: code}
    assert ("ValueError: no good" in said(tmp_path, 0, "err")) == (args == ["raise"])


def test_a_killed_rank_is_told_at_once_and_the_others_live(
    client: ForkClient, tmp_path: Path
) -> None:
    pids = [start(client, tmp_path, rank, "wait") for rank in range(3)]
    assert client.pids() == dict(enumerate(pids))
    until(lambda: "here" in said(tmp_path, 1))
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    client.wait(LIMIT_S)  # not the whole of it
    assert time.monotonic() - began < LIMIT_S / 2
    assert client.exit_codes() == {0: None, 1: -signal.SIGKILL, 2: None}
    assert start(client, tmp_path, 1, "wait") not in pids  # one by one, in the same attempt
    assert client.exit_codes() == {0: None, 1: None, 2: None}
    until(lambda: said(tmp_path, 1).count("here") == 2)  # the log goes on
    client.end_ranks([0])
    assert client.exit_codes() == {0: -signal.SIGKILL, 1: None, 2: None}
    client.end_ranks()
    assert set(client.exit_codes().values()) == {-signal.SIGKILL}
    assert client.pids() == {}


def test_signals_reach_the_ranks_they_are_for(client: ForkClient, tmp_path: Path) -> None:
    for rank in range(2):
        start(client, tmp_path, rank, "wait")
    client.send_signal([1], signal.SIGUSR1)
    until(lambda: client.exit_codes()[1] is not None, client)
    assert client.exit_codes() == {0: None, 1: -signal.SIGUSR1}


def test_a_stopped_rank_can_be_ended(client: ForkClient, tmp_path: Path) -> None:
    start(client, tmp_path, 0, "wait")
    assert client.stopped_ranks() == set()
    client.send_signal([0], signal.SIGSTOP)
    until(lambda: client.stopped_ranks() == {0})
    client.end_ranks()
    assert client.exit_codes() == {0: -signal.SIGKILL}


@pytest.mark.parametrize("how", ["leaves", "is ended"])
def test_what_a_rank_started_goes_with_it(how: str, client: ForkClient, tmp_path: Path) -> None:
    start(client, tmp_path, 0, "brood", "wait" if how == "is ended" else "no")
    until(lambda: re.search(r"child \d+\n", said(tmp_path, 0)))  # the whole line
    if how == "is ended":
        client.end_ranks()
    until(lambda: client.exit_codes()[0] is not None, client)
    child = int(said(tmp_path, 0).split()[-1])
    until(lambda: gone(child))


def test_closing_ends_everything(client: ForkClient, tmp_path: Path) -> None:
    pids = [start(client, tmp_path, rank, "wait") for rank in range(2)]
    client.close()
    assert all(gone(pid) for pid in pids)
    assert set(client.exit_codes().values()) == {-signal.SIGKILL}


def test_a_lost_server_is_a_loss_of_its_ranks_and_is_started_again(
    client: ForkClient, tmp_path: Path
) -> None:
    pid = start(client, tmp_path, 0, "wait")
    server = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(server, signal.SIGKILL)
    until(lambda: client.exit_codes()[0] is not None, client)
    assert client.exit_codes() == {0: -signal.SIGKILL}
    until(lambda: gone(pid))
    assert start(client, tmp_path, 0, "wait") > 0
    assert client.exit_codes() == {0: None}


def test_a_stopped_server_is_continued_as_soon_as_it_is_needed(
    client: ForkClient, tmp_path: Path
) -> None:
    """Somebody stops it, and a rank dies: nobody else could tell that, or start another."""
    pid = start(client, tmp_path, 0, "wait")
    start(client, tmp_path, 1, "wait")
    until(lambda: client.ready, client)
    os.kill(client._process.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: client.exit_codes()[0] == -signal.SIGKILL)
    os.kill(client._process.pid, signal.SIGSTOP)
    assert start(client, tmp_path, 0, "wait")
    os.kill(client._process.pid, signal.SIGSTOP)
    client.end_ranks()
    assert client.exit_codes() == {0: -9, 1: -9}


def test_what_does_not_come_up_says_why(tmp_path: Path) -> None:
    client = ForkClient({}, modules=["no_such_module"])
    with pytest.raises(RunFailed, match="No module named 'no_such_module'"):
        start(client, tmp_path, 0, "wait")
    client.close()


PARENT = """
import sys, time
from pathlib import Path
from penstock.launch.supervisor.fork_client import ForkClient
client = ForkClient({}, modules=[])
print(client.start(0, {"RANK": "0"}, ["child", "wait"], Path(sys.argv[1])), flush=True)
time.sleep(600)
"""


def test_ranks_die_with_the_process_that_has_the_client(tmp_path: Path, client: ForkClient) -> None:
    path = f"{tmp_path}/modules{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | {"PYTHONPATH": path}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "logs")], env=env, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.kill()
    parent.communicate()
    until(lambda: gone(pid))


def test_what_a_rank_imports_starts_no_thread_and_no_cuda() -> None:
    """Neither survives a fork."""
    look = (
        "import importlib, os, sys; [importlib.import_module(name) for name in sys.argv[1:]];"
        "import torch; print(len(os.listdir('/proc/self/task')), torch.cuda.is_initialized())"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, "-c", look, *modules("cuda")],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == ["1", "False"]


def test_ranks_have_the_clock_of_the_supervisor_even_if_the_systems_is_set_meanwhile() -> None:
    look = (
        "import time; real = time.time; time.time = lambda: real() - 7200.0;"
        "from penstock.meter.clock import now; print(now())"
    )
    env = os.environ | environment.for_fork_server(1)
    before = now()
    out = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, check=True)
    assert before < float(out.stdout) < now()
