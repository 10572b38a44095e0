"""What every rank is doing at this moment: the stacks of all threads, asked for by a signal.

Ranks answer by `faulthandler`, which works in a thread that is stuck in C code too. A rank that is
stopped, or that the kernel holds, does not answer. On CUDA, NCCL's flight recorder is asked too:
its files `flight-R` are for torch's own tools.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from penstock.launch.supervisor.environment import FLIGHT

ANSWER_S = 3.0
FLIGHT_S = 2.5
SETTLE_S = 0.1  # an answer comes in several writes
_COLLECTIVE = re.compile(r'File ".*/torch/distributed/.*", line \d+ in \w+')
_TOP = 6  # frames: what a thread waits in, below the wrappers


class Signalled(Protocol):
    """Of a `Nursery`."""

    def kill(self, ranks: Collection[int], number: int = ...) -> None: ...


def collect(processes: Signalled, ranks: Collection[int], logs: Path) -> dict[int, str]:
    """The stacks by rank, "" of those that gave none; they are kept as `rank-R.stack`."""
    files = {rank: logs / f"rank-{rank}.err" for rank in ranks}
    before = {rank: _size(file) for rank, file in files.items()}
    processes.kill(ranks, signal.SIGUSR1)
    pipes = [pipe for rank in ranks if (pipe := logs / f"{FLIGHT}{rank}.pipe").exists()]
    for pipe in pipes:
        _ask(pipe)
    _settle(files, before)
    if pipes:
        time.sleep(FLIGHT_S)  # ranks look at the pipe once a second
    found = {}
    for rank, file in files.items():
        found[rank] = _after(file, before[rank])
        (logs / f"rank-{rank}.stack").write_text(found[rank] or "no answer\n")
    return found


def waits(stack: str) -> bool | None:
    """Whether the main thread is inside a collective; None of a rank that gave no stack."""
    if not stack:
        return None
    main = stack.split("Current thread", 1)[-1].splitlines()[1:]
    return any(_COLLECTIVE.search(line) for line in main[:_TOP])


def where(stack: str) -> str:
    """The innermost frame of the main thread, for one line of words."""
    found = re.search(r'File "(.*)", line (\d+) in (\S+)', stack.split("Current thread", 1)[-1])
    return f"{found[3]} ({Path(found[1]).name}:{found[2]})" if found else ""


def _ask(pipe: Path) -> None:
    with contextlib.suppress(OSError):  # nobody reads there any more
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(file, b"1\n")
        finally:
            os.close(file)


def _settle(files: dict[int, Path], before: dict[int, int]) -> None:
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


def _after(file: Path, start: int) -> str:
    try:
        return file.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return ""
