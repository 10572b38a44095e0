"""Event files for TensorBoard, read by TensorBoard's own reader and by its own server."""

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.errors import PenstockError
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.tensorboard_log import check, folder_of
from penstock.watch.outlets.tracker import tracked_run
from tracked_launches import follow, launched, logged_folder


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    return logged_folder(run_file, **{"log.tensorboard": True})


def series(where: Path, tag: str) -> list[tuple[int, float]]:
    """Return (step, value) of a tag, as TensorBoard reads it."""
    found = EventAccumulator(str(where), size_guidance={"scalars": 0}).Reload()
    return [(e.step, e.value) for e in found.Scalars(tag)]


def texts(where: Path, tag: str) -> list[str]:
    found = EventAccumulator(str(where), size_guidance={"tensors": 0}).Reload()
    return [e.tensor_proto.string_val[0].decode() for e in found.Tensors(tag)]


def test_a_resumed_run_continues_the_same_series(folder: RunFolder) -> None:
    where = folder.path / "tensorboard"
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", validation={2: 4.5})
    said = follow(folder, 0, 0, {})
    assert said.splitlines() == [f"tensorboard: tensorboard --logdir {where}"]
    assert series(where, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5)]
    assert series(where, "validation/loss") == [(2, 4.5)]
    assert "| train.batch_tokens |" in texts(where, "config")[0]
    assert "gives up" in texts(where / "events", "crash")[0]

    # Step 3 comes out the same: it is there once.
    launched(folder, 1, {3: 3.5, 4: 3.0}, "failed", t=2000.0)
    follow(folder, 4, 1, {})
    assert series(where, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 3.0)]

    # The batch of step 2 is left out now: what follows takes the place of the old values.
    launched(folder, 2, {2: 4.25, 3: 3.25, 4: 2.5}, "done", t=3000.0)
    follow(folder, 8, 2, {})
    assert series(where, "train/loss") == [(1, 5.0), (2, 4.25), (3, 3.25), (4, 2.5)]
    assert series(where, "rank_s/compute")[-1][1] > 0
    assert texts(where / "events", "finish") == ["has finished"]
    assert len(texts(where / "events", "crash")) == 4  # two of each launch that failed


def test_rewards_of_pairs_are_series(folder: RunFolder) -> None:
    where = folder.path / "tensorboard"
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, -0.5, 1.0)}
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", validation={2: 4.5}, rewards=rewards)
    follow(folder, 0, 0, {})
    assert series(where, "rewards/chosen") == [(1, 0.0), (2, 0.5), (3, 0.5)]
    assert series(where, "rewards/rejected") == [(1, 0.0), (2, 0.25), (3, -0.5)]
    assert series(where, "rewards/accuracy") == [(1, 0.0), (2, 0.75), (3, 1.0)]
    assert series(where, "validation_rewards/margin") == [(2, 0.25)]

    # Step 3 is made again with another loss: the old values from there on are dropped.
    again = {3: (0.75, -0.5, 1.0), 4: (1.0, -0.5, 1.0)}
    launched(folder, 1, {3: 3.25, 4: 3.0}, "done", t=2000.0, rewards=again)
    follow(folder, 4, 1, {})
    assert series(where, "rewards/margin") == [(1, 0.0), (2, 0.25), (3, 1.25), (4, 1.5)]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def test_the_real_server_shows_the_series(folder: RunFolder, tmp_path: Path) -> None:
    launched(folder, 0, {1: 5.0, 2: 4.0}, "failed")
    follow(folder, 0, 0, {})
    launched(folder, 1, {2: 3.75, 3: 3.0}, "done", t=2000.0)
    follow(folder, 4, 1, {})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--logdir", str(folder.path), "--port", str(port), "--host", "127.0.0.1"]
    with (
        open(tmp_path / "server.log", "wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *words],
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}/data"
            query = urllib.parse.urlencode({"run": "tensorboard", "tag": "train/loss"})
            shown: list[Any] = []
            until = time.monotonic() + 120
            while len(shown) < 3 and time.monotonic() < until:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                try:
                    shown = get(f"{url}/plugin/scalars/scalars?{query}")
                except OSError:  # it starts, or has not read the files yet
                    time.sleep(0.1)
            assert [(step, value) for _, step, value in shown] == [(1, 5.0), (2, 3.75), (3, 3.0)]
            assert set(get(f"{url}/runs")) == {"tensorboard", "tensorboard/events"}
        finally:
            server.terminate()


def test_runs_that_share_a_folder_have_one_each(folder: RunFolder, tmp_path: Path) -> None:
    """A fresh run of the same name has another folder too."""
    launched(folder, 0, {1: 5.0}, "done")
    first = folder_of(str(tmp_path / "tb"), tracked_run(RunView(folder)))
    assert first.parent == tmp_path / "tb"
    (folder.journal / "supervisor.events").unlink()
    launched(folder, 1, {1: 5.0}, "done", t=3000.0)
    assert folder_of(str(tmp_path / "tb"), tracked_run(RunView(folder))) != first


def test_a_file_in_the_way_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check(True)
    check(str(tmp_path / "new" / "folder"))
    for wrong in ("file", "file/below"):
        with pytest.raises(PenstockError, match="is a file; write a folder"):
            check(str(tmp_path / wrong))


def test_a_folder_that_cannot_be_written_does_not_stop_the_process(folder: RunFolder) -> None:
    launched(folder, 0, {1: 5.0}, "done")
    (folder.path / "tensorboard").write_text("in the way")
    said = follow(folder, 0, 0, {})
    lines = [line for line in said.splitlines() if line.startswith("tensorboard: ")]
    assert len(lines) == 1
    assert "; no more is sent now; the next `penstock train`" in lines[0]
