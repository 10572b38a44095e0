"""The probe of a pod: a host that starts, compiles or waits lives; one that is stuck does not."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.launch.engines import alive
from penstock.launch.supervisor.fence import Fence
from penstock.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("PENSTOCK_MEMORY", str(tmp_path / "memory"))
    monkeypatch.setenv("PENSTOCK_NODE", "run-node-0-0-abcde")
    return RunFolder(tmp_path / "runs" / "run")


@pytest.mark.parametrize("name", ["lock-run-node-0-0-abcde", "lock"])
def test_a_run_has_started_once_its_lock_is_held(folder, name):
    assert alive.main(["--started", str(folder.path)]) == 1
    with folder.lock(name):
        assert alive.main(["--started", str(folder.path)]) == 0


def test_the_lock_of_another_pod_says_nothing(folder):
    with folder.lock("lock-run-node-1-0-fghij"):
        assert alive.main(["--started", str(folder.path)]) == 1


def test_a_lock_that_a_dead_process_left_behind_says_nothing(folder):
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    folder.path.mkdir(parents=True)
    (folder.path / "lock").write_text(str(child))
    assert alive.main(["--started", str(folder.path)]) == 1


def test_only_a_fence_that_stood_still_for_half_an_hour_is_stuck(folder, capsys, monkeypatch):
    assert alive.main([str(folder.path)]) == 0  # one host, or none yet
    fence = Fence(folder.make_scratch() / "fence")
    assert alive.main([str(folder.path)]) == 0  # has not met the others
    moved_s = time.monotonic()  # may be less than half an hour: a machine that has just booted

    def set_clock(now_s: float) -> None:
        monkeypatch.setattr(alive, "time", SimpleNamespace(monotonic=lambda: now_s))

    fence.move(moved_s)
    for passed_s in (-6.0, 1.0, 1790.0):  # moving, cut off, and almost too long
        set_clock(moved_s + passed_s)
        assert alive.main([str(folder.path)]) == 0
    set_clock(moved_s + alive.STUCK_S + 1)
    assert alive.main([str(folder.path)]) == 1
    assert "neither leads nor follows since 30 minutes" in capsys.readouterr().out
