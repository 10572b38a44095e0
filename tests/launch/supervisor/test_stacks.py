"""Stacks that ranks give when they are asked, and those that they cannot give."""

import os
import signal
from pathlib import Path

from test_fork_client import said, until

from penstock.launch.supervisor import stacks
from penstock.launch.supervisor.fork_client import ForkClient

CHILD = """
import faulthandler, os, signal, threading, time
faulthandler.register(signal.SIGUSR1, all_threads=True)

def somewhere_deep():
    os.write(1, b"here\\n")  # no frame of Python is inside of it
    time.sleep(600)

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
somewhere_deep()
"""
WAITING = """Thread 0x1 (most recent call first):
  File "/x/threading.py", line 1 in wait

Current thread 0x2 (most recent call first):
  File "/v/torch/distributed/distributed_c10d.py", line 3169 in all_reduce
  File "/v/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/x/penstock/train/replicas.py", line 77 in vote
"""


def test_every_rank_gives_its_stack_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    client, logs = ForkClient({"PYTHONPATH": str(tmp_path)}, modules=[]), tmp_path / "logs"
    try:
        for rank in range(2):
            client.start(rank, {}, ["child"], logs)
        until(lambda: all("here" in said(tmp_path, rank) for rank in range(2)))
        os.kill(client.pids()[1], signal.SIGSTOP)
        found = stacks.collect(client, [0, 1], logs)
    finally:
        client.close()
    assert "somewhere_deep" in found[0]
    assert found[1] == ""
    assert (logs / "rank-0.stack").read_text() == found[0]
    assert stacks.innermost_frame(found[0]).startswith("somewhere_deep (child.py:")
    assert stacks.in_collective(found[0]) is False
    assert stacks.in_collective(found[1]) is None


def test_a_rank_in_a_collective_waits() -> None:
    assert stacks.in_collective(WAITING) is True
    busy = WAITING.replace("torch/distributed", "somebody")
    assert stacks.in_collective(busy) is False
    assert stacks.innermost_frame(WAITING) == "all_reduce (distributed_c10d.py:3169)"
