"""Notice of preemption (SIGTERM) at any moment: what can be saved is, and the grace is kept."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_launch_hang import SLOW, supervised

import commands
from penstock.guard.detect import pulse
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.run.folder import RunFolder
from penstock.run.load import load
from whole_runs import OWN_FIELDS

MakeFile = Callable[..., Path]
LIMIT_S = 120.0
FIELDS = {
    "train.steps": 100_000,
    "guard.checkpoint": "50000 steps",
    "guard.timeout": "120 s",
    "evaluate.every": "never",
    "cluster.accelerators": 2,
}


def preempted(path: Path, ready: Callable[[RunFolder], bool]) -> dict[str, Any]:
    """Send SIGTERM once `ready`; the report when the run has ended."""
    folder = RunFolder(load(path).folder)
    process = commands.popen("train", path, "--json")
    deadline = time.monotonic() + LIMIT_S
    try:
        while not ready(folder):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it never came there"
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        out, told = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, told
    return json.loads(out)


def at(phase: str, step: int = 0) -> Callable[[RunFolder], bool]:
    """Whether both ranks are in a phase of that step or a later one."""

    def ready(folder: RunFolder) -> bool:
        beats = [pulse.read_heartbeat(folder.scratch, rank) for rank in range(2)]
        return all(b is not None and b.phase == phase and b.step >= step for b in beats)

    return ready


def test_between_steps_it_saves_and_stops(run_file: MakeFile) -> None:
    path = run_file(**FIELDS)
    folder = RunFolder(load(path).folder)

    def running(folder: RunFolder) -> bool:
        beat = pulse.read_heartbeat(folder.scratch, 0)
        return beat is not None and beat.step >= 5

    report = preempted(path, running)
    assert report["status"] == "stopped"
    assert report["checkpoint"].endswith(f"step-{report['steps']:08d}")
    assert not supervised(folder, "grace_over")


@pytest.mark.parametrize("phase", ["build", "warm_up"])
def test_before_the_first_step_it_ends_at_once(phase: str, run_file: MakeFile) -> None:
    path = run_file(**FIELDS | {"guard.grace": "100 s"})
    folder = RunFolder(load(path).folder)
    for rank in range(2):
        arm(folder.traps, Failpoint(f"t{rank}", "sleep", phase, rank=rank, ms=600_000))
    report = preempted(path, at(phase))
    assert report["status"] == "stopped"
    assert report["faults"] == 0
    assert not supervised(folder, "grace_over")  # nobody waited for the traps to end


@pytest.mark.slow
def test_at_the_end_of_the_grace_it_is_killed(run_file: MakeFile) -> None:
    path = run_file(**FIELDS | {"guard.grace": "2 s"})
    folder = RunFolder(load(path).folder)
    for rank in range(2):
        arm(folder.traps, Failpoint(f"t{rank}", "sleep", "forward", rank=rank, step=5, ms=600_000))
    report = preempted(path, at("forward", 5))
    assert report["status"] == "stopped"
    assert report["faults"] == 0
    (over,) = supervised(folder, "grace_over")
    (asked,) = supervised(folder, "asked_to_stop")
    assert over.t - asked.t == pytest.approx(1.0, abs=0.9)  # with a second left to end everything


# Not at the evaluation before the first step, where there is nothing to save.
SLOW_TO_EVALUATE = SLOW.replace(
    'time.sleep(0.12 if os.environ.get("RANK") == "1" and self.training else 0.02)',
    "self.seen = getattr(self, 'seen', 0) + self.training\n"
    "        time.sleep(0 if self.training or self.seen < 6 else 1.0)",
)


def test_an_evaluation_is_cut_short(tmp_path: Path, run_file: MakeFile) -> None:
    """Its 100 microbatches take a second each, which is longer than the grace."""
    (tmp_path / "own.py").write_text(SLOW_TO_EVALUATE)
    fields = OWN_FIELDS | FIELDS | {"guard.grace": "90 s"}
    fields |= {"model.module": f"{tmp_path}/own.py:build"}
    fields |= {"evaluate.every": "3 steps", "evaluate.holdout": "20%", "evaluate.tokens": 3200}
    fields |= {"layout.microbatch": 1, "layout.replicate": 2}
    path = run_file(**fields)
    folder = RunFolder(load(path).folder)
    report = preempted(path, at("evaluate", 3))
    assert report["status"] == "stopped"
    assert report["steps"] == 3
    assert report["checkpoint"].endswith("step-00000003")
    assert not supervised(folder, "grace_over")
