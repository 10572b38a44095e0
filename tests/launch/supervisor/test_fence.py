"""Ranks end when their host may not go on, though nobody of it is awake to end them."""

import os
import signal
import time
from pathlib import Path

from penstock.launch.supervisor.fence import ENVIRONMENT, Fence
from penstock.launch.supervisor.fork_client import ForkClient

LIMIT_S = 60.0


def test_a_fence_holds_until_its_moment(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "fence")
    assert fence.passed  # nobody has said anything yet
    fence.move(time.monotonic() + 100)
    assert not Fence(tmp_path / "fence").passed  # as another process sees it
    fence.move(time.monotonic() - 1)
    assert Fence(tmp_path / "fence").passed


def test_ranks_live_as_long_as_the_fence_is_moved_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "nothing.py").write_text("")
    fence = Fence(tmp_path / "fence")
    fence.move(time.monotonic() + LIMIT_S)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    client = ForkClient({"PYTHONPATH": path, ENVIRONMENT: str(fence.path)}, modules=["nothing"])
    try:
        client.start(0, {}, ["waits"], tmp_path / "logs")
        client.wait(1.0)
        assert client.exit_codes() == {0: None}
        fence.move(time.monotonic() + 0.5)  # and nobody moves it on
        deadline = time.monotonic() + LIMIT_S
        while client.exit_codes()[0] is None:
            assert time.monotonic() < deadline
            client.wait(0.1)
        assert client.exit_codes() == {0: -signal.SIGKILL}
    finally:
        client.close()
