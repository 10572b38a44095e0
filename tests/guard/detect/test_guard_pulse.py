"""Signs of life in shared memory, and the faults that a drill springs at them."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from penstock.guard.detect.failpoints import Failpoint, Failpoints, arm
from penstock.guard.detect.failpoints import read as armed
from penstock.guard.detect.pulse import PHASES, Pulse, read_heartbeat


def test_a_watcher_reads_where_a_rank_is(tmp_path):
    assert read_heartbeat(tmp_path, 3) is None
    pulse = Pulse(tmp_path, 3, attempt=2)
    seen = []
    for phase in PHASES:
        pulse.at(phase, 7)
        beat = read_heartbeat(tmp_path, 3)
        assert (beat.attempt, beat.pid, beat.step, beat.phase) == (2, os.getpid(), 7, phase)
        seen.append(beat.count)
    pulse.beat()
    seen.append(read_heartbeat(tmp_path, 3).count)
    assert seen == sorted(set(seen))


def test_a_pulse_that_was_deleted_is_there_again(tmp_path, monkeypatch):
    pulse = Pulse(tmp_path / "scratch", 0, attempt=2)
    monkeypatch.setattr("penstock.guard.detect.pulse.LOOK_S", 0.0)
    shutil.rmtree(tmp_path / "scratch")
    pulse.at("forward", 7)
    assert read_heartbeat(tmp_path / "scratch", 0).step == 7


def test_a_trap_springs_once_in_its_phase_and_step_of_its_rank(tmp_path):
    sprung = []
    for name, rank, step in [("mine", 1, 4), ("other", 0, 4), ("any", None, None)]:
        arm(tmp_path, Failpoint(name, "note", "vote", rank, step))
    traps = Failpoints(tmp_path, rank=1, attempt=5)
    traps.handlers["note"] = lambda trap: sprung.append(trap.name)
    pulse = Pulse(tmp_path / "scratch", 1, 5, traps)
    pulse.at("vote", 3)
    assert sprung == ["any"]
    pulse.at("forward", 4)
    assert sprung == ["any"]
    pulse.at("vote", 4)
    pulse.at("vote", 4)
    assert sprung == ["any", "mine"]
    assert [trap.name for trap in armed(tmp_path)] == ["other"]
    fired = json.loads((tmp_path / "mine.fired").read_text())
    assert (fired["rank"], fired["attempt"], fired["pid"]) == (1, 5, os.getpid())


CHILD = """
import sys
from pathlib import Path
from penstock.guard.detect.pulse import Pulse
from penstock.guard.detect.failpoints import Failpoints
pulse = Pulse(Path(sys.argv[1]), 0, 0, Failpoints(Path(sys.argv[2]), 0, 0))
for step in range(10):
    pulse.at("forward", step)
    print(step, flush=True)
"""


@pytest.mark.parametrize("action", ["kill", "exit"])
def test_a_trap_ends_a_process_exactly_there_and_not_again_in_the_next(tmp_path, action):
    arm(tmp_path / "traps", Failpoint("t", action, "forward", 0, 6))
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(tmp_path / "traps")]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == (-signal.SIGKILL if action == "kill" else 7)
    assert first.stdout.split() == list("012345")
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 0
    assert len(second.stdout.split()) == 10
