"""Processes forked from one that has its imports done: like new ones, and never left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.supervisor import preload
from penstock.launch.supervisor.fork_client import ForkClient
from penstock.launch.supervisor.preload import ForkedProcess, PreloadClient

LIMIT_S = 60.0
CHILD = """
import atexit, json, os, signal, sys, threading, time
atexit.register(lambda: print("left", flush=True))
print(json.dumps({"argv": sys.argv[1:], "name": __name__, "there": "ONLY_THERE" in os.environ,
    "session": os.getsid(0) == os.getpid(), "parent": os.getppid(), "cwd": os.getcwd(),
    "loaded": "heavy" in sys.modules, "own": os.environ.get("OWN"),
    "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    "streams": [s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)],
    "open": [fd for fd in range(3, 90) if os.path.exists(f"/proc/self/fd/{fd}")]}), flush=True)
what = sys.argv[1]
if what == "wait":
    time.sleep(600)
elif what == "leave":
    sys.exit(int(sys.argv[2]))
elif what == "raise":
    raise ValueError("no good")
elif what == "words":
    sys.exit("bad words")
elif what == "thread":
    threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadClient]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "child.py").write_text(CHILD)
    (folder / "heavy.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        with preload.serving({"ONLY_THERE": "1"}, ["heavy"]) as made:
            assert preload.from_environment() == made
            yield made
        assert preload.from_environment() != made


@pytest.fixture
def start(found: PreloadClient, tmp_path: Path) -> Callable[..., ForkedProcess]:
    def go(*args: str, preload: PreloadClient = found, **env: str) -> ForkedProcess:
        with (tmp_path / "out").open("wb") as out, open(os.devnull) as nothing:
            fds = {0: nothing.fileno(), 1: out.fileno(), 2: out.fileno()}
            return preload.start(["child", *args], os.environ | env, fds)

    return go


def said(tmp_path: Path, lines: int = 1) -> list[str]:
    """The lines that a process has written, once there are so many."""
    until(lambda: (tmp_path / "out").read_text().count("\n") >= lines)
    return (tmp_path / "out").read_text().splitlines()


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_fork_is_what_python_m_would_be(
    start: Callable[..., ForkedProcess],
    found: PreloadClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    process = start("leave", "7", OWN="mine")
    assert process.wait(LIMIT_S) == 7
    assert process.poll() == process.returncode == 7
    first, last = said(tmp_path, 2)
    told: dict[str, Any] = json.loads(first)
    assert told.pop("parent") == found.pid
    assert told == {
        "argv": ["leave", "7"],
        "name": "__main__",
        "there": False,
        "session": True,
        "cwd": str(tmp_path),
        "loaded": True,
        "own": "mine",
        "int": True,
        "term": True,
        "streams": [0, 1, 2],
        "open": [],  # nothing of the preload, nor of other processes
    }
    assert last == "left"  # what is to be done at exit is done


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["end"], 0, "left"),
        (["raise"], 1, "ValueError: no good"),
        (["words"], 1, "bad words"),
        (["thread"], 0, "late"),
    ],
)
def test_it_ends_as_python_does(
    args: list[str], code: int, word: str, start: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    assert start(*args).wait(LIMIT_S) == code
    assert word in said(tmp_path)


@pytest.mark.parametrize(
    ("env", "loaded"), [({"MALLOC_ARENA_MAX": "1"}, False), ({"OWN_THING": "1"}, True)]
)
def test_what_is_read_at_start_gets_a_new_python(
    env: Mapping[str, str], loaded: bool, start: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    assert start("end", **env).wait(LIMIT_S) == 0
    assert json.loads(said(tmp_path)[0])["loaded"] == loaded


def test_signals_and_a_wait_that_is_too_short(
    start: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = start("wait")
    said(tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    process.kill()  # no error


@pytest.mark.usefixtures("found")
def test_it_dies_with_whoever_asked_for_it() -> None:
    code = (
        "import os, sys, time; from penstock.launch.supervisor import preload\n"
        "process = preload.from_environment().start(['child', 'wait'], os.environ, {})\n"
        "print(process.pid, flush=True); time.sleep(600)"
    )
    asks = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asks.stdout is not None
    with asks:
        pid = int(asks.stdout.readline())
        assert not gone(pid)
        asks.kill()
    until(lambda: gone(pid))


def test_it_dies_with_the_preload_server(start: Callable[..., ForkedProcess]) -> None:
    with preload.serving({}, []) as other:
        process = start("wait", preload=other)
        assert not gone(process.pid)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    until(lambda: gone(process.pid))


def test_ranks_come_from_it(found: PreloadClient, tmp_path: Path) -> None:
    client = ForkClient({}, modules=["heavy"], preload=found)
    try:
        pid = client.start(3, {"OWN": "rank"}, ["child", "wait"], tmp_path / "logs")
        out = tmp_path / "logs/rank-3.out"
        until(lambda: out.exists() and out.read_text().endswith("\n"))
        told = json.loads(out.read_text())
        assert (told["own"], told["loaded"]) == ("rank", True)
        server = told["parent"]
        stat = Path(f"/proc/{server}/stat").read_text()
        assert int(stat.rsplit(")", 1)[1].split()[1]) == found.pid  # its parent
    finally:
        client.close()
    assert gone(pid)
    until(lambda: gone(server))


def test_a_terminal_can_control_it(found: PreloadClient) -> None:
    master, slave = os.openpty()
    streams = dict.fromkeys(range(3), slave)
    process = found.start(["child", "wait"], os.environ, streams, terminal=True)
    assert b"argv" in os.read(master, 10_000)
    os.write(master, b"\x03")  # Ctrl-C reaches it through the terminal alone
    assert process.wait(LIMIT_S) == 1  # KeyboardInterrupt, told by its traceback
    for end in (master, slave):
        os.close(end)
