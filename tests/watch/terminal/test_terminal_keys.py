"""The screen of `penstock train` in a real terminal: keys work, and the terminal is restored."""

import os
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.ledger.journal.events import DisplayFailed, StopSignal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_view import RunView
from penstock.watch.terminal.keys import Keyboard, _keys
from terminal_lab import ENTER, SHOW, Seat, seat

LONG = {"train.steps": 200_000, "guard.checkpoint": "100000 steps", "evaluate.every": "never"}


def put_back(seated: Seat) -> None:
    assert seated.attributes() == seated.before
    assert ENTER in seated.text  # there was a screen to leave
    assert SHOW in seated.text.rpartition(ENTER)[2]
    assert not seated.attributes()[3] & ~seated.before[3]


def test_keys_save_help_ask_and_stop_and_the_size_is_followed(
    run_file: Callable[..., Path],
) -> None:
    file = run_file("keys", **LONG)
    folder = RunFolder(load(file).folder)
    with seat("train", str(file)) as seated:
        seated.shows("tokens/s")
        assert not seated.attributes()[3] & termios.ICANON
        assert not seated.attributes()[3] & termios.ECHO
        assert sizes(seated.frames()[-2]) == (80, 24)
        seated.resize(130, 40)
        seated.until(lambda: sizes(seated.frames()[-2]) == (130, 40), "did not become wide")
        assert "planned" in seated.frames()[-2]
        seated.press("h")
        seated.shows("save a checkpoint after this step")
        seated.press("h")
        seated.press("\x1b[A")  # an arrow is no key of ours
        seated.press("s")
        seated.shows("a checkpoint is saved")
        seated.shows("saved   step")
        seated.press("q")
        seated.shows("save and stop?")
        seated.press("n")
        seated.shows("save now")
        step = RunView(folder).step
        seated.until(lambda: RunView(folder).step > step, "a refused stop stopped the run")
        seated.press("q")
        seated.shows("save and stop?")
        seated.press("y")
        assert seated.end() == 0
        put_back(seated)
        assert "stopped, step" in seated.after()
    assert RunView(folder).status == "stopped"
    assert RunView(folder).newest_checkpoint
    asked = RunView(folder).supervisor_events_of(StopSignal)
    assert [e.payload["signal"] for e in asked] == ["SIGINT"]


@pytest.mark.slow
def test_the_page_is_opened_by_a_key_and_ends_with_the_run(run_file: Callable[..., Path]) -> None:
    """By SIGTERM, after which the terminal is put back too."""
    env = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "SSH_CONNECTION": "x"}
    with seat("train", str(run_file("page", **LONG)), columns=120, env=env) as seated:
        seated.shows("tokens/s")
        seated.press("o")
        seated.shows("http://127.0.0.1:")
        child = pages_of(seated.process.pid)
        assert len(child) == 1
        os.kill(seated.process.pid, signal.SIGTERM)
        seated.end()
        put_back(seated)
        assert not Path(f"/proc/{child[0]}").exists()


def sizes(frame: str) -> tuple[int, int]:
    lines = frame.split("\n")
    return max(map(len, lines)), len(lines)


def pages_of(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if " watch " in line]


@pytest.mark.slow
def test_the_terminal_is_restored_after_a_crash_of_the_display(
    run_file: Callable[..., Path], tmp_path: Path
) -> None:
    """The run goes on without its display, and what went wrong can be read."""
    broken = tmp_path / "site" / "sitecustomize.py"
    broken.parent.mkdir()
    broken.write_text(
        "import penstock.watch.terminal.status_lines as s\n"
        "def no(*a, **k): raise RuntimeError('no screen today')\n"
        "s._speed = no\n"
    )
    file = run_file("broken", **{"train.steps": 5})
    path = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")])
    with seat("train", str(file), env={"PYTHONPATH": path}) as seated:
        assert seated.end() == 0
        put_back(seated)
        assert "no screen today" in seated.after()
        assert "done, step 5 of 5" in seated.after()
    assert RunView(RunFolder(load(file).folder)).supervisor_events_of(DisplayFailed)


def test_a_pipe_has_no_keys() -> None:
    read, write = os.pipe()
    try:
        keyboard = Keyboard(read)
        assert not keyboard.start()
        os.write(write, b"q")
        assert keyboard.read() == ""
        keyboard.stop()
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"s", "s"),
        (b"h\x1b[As", "hs"),  # an arrow between two keys, all read at once
        (b"\x1b[1;5Cq", "q"),
        (b"\x1bOPs", "s"),
        (b"\x1b", ""),
        (b"\xc3\xa9y", "y"),
    ],
)
def test_an_arrow_key_does_not_swallow_the_next_key(sent: bytes, keys: str) -> None:
    assert _keys(sent) == keys
