"""Stacks of all threads of all ranks, requested by a signal when the ranks hang.

Ranks answer by `faulthandler`, which also works in a thread that is stuck in C code. A rank that is
stopped, or that the kernel holds, does not answer. On CUDA this also asks NCCL's flight recorder,
whose files `flight-R` torch's own tools read.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path

from penstock.launch.supervisor.environment import FLIGHT
from penstock.launch.supervisor.rank_processes import RankProcesses

ANSWER_S = 3.0
FLIGHT_S = 2.5
SETTLE_S = 0.1  # an answer comes in several writes
_COLLECTIVE = re.compile(r'File ".*/torch/distributed/.*", line \d+ in \w+')
_TOP_FRAMES = 6  # of a thread: the collective that it waits in stands below some wrappers


def collect(processes: RankProcesses, ranks: Collection[int], logs: Path) -> dict[int, str]:
    """Return the stacks by rank, "" for a rank that does not answer; write `rank-R.stack`."""
    files = {rank: logs / f"rank-{rank}.err" for rank in ranks}
    before = {rank: _size(file) for rank, file in files.items()}
    processes.send_signal(ranks, signal.SIGUSR1)
    pipes = [pipe for rank in ranks if (pipe := logs / f"{FLIGHT}{rank}.pipe").exists()]
    for pipe in pipes:
        _request_flight_record(pipe)
    _wait_for_answers(files, before)
    if pipes:
        time.sleep(FLIGHT_S)  # ranks read the pipe once a second
    stacks = {}
    for rank, file in files.items():
        stacks[rank] = _read_from(file, before[rank])
        (logs / f"rank-{rank}.stack").write_text(stacks[rank] or "no answer\n")
    return stacks


def in_collective(stack: str) -> bool | None:
    """Return whether the main thread is inside a collective; None where there is no stack."""
    if not stack:
        return None
    main = stack.split("Current thread", 1)[-1].splitlines()[1:]
    return any(_COLLECTIVE.search(line) for line in main[:_TOP_FRAMES])


def innermost_frame(stack: str) -> str:
    """Return the innermost frame of the main thread as `function (file:line)`."""
    match = re.search(r'File "(.*)", line (\d+) in (\S+)', stack.split("Current thread", 1)[-1])
    return f"{match[3]} ({Path(match[1]).name}:{match[2]})" if match else ""


def _request_flight_record(pipe: Path) -> None:
    with contextlib.suppress(OSError):  # the rank does not read there any more
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(file, b"1\n")
        finally:
            os.close(file)


def _wait_for_answers(files: dict[int, Path], before: dict[int, int]) -> None:
    """Wait until every file has grown and grows no more, or for `ANSWER_S`."""
    deadline, sizes, still_s = time.monotonic() + ANSWER_S, before, time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = {rank: _size(file) for rank, file in files.items()}
        if now != sizes:
            sizes, still_s = now, time.monotonic()
        answered = all(now[rank] > before[rank] for rank in files)
        if answered and time.monotonic() - still_s > SETTLE_S:
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read_from(file: Path, start: int) -> str:
    try:
        return file.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return ""
