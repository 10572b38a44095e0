"""Signals to processes that descend from one of ours, and to nobody else.

The campaign runs as root and takes pids from journals and from /proc. A rank whose parent has died
belongs to pid 1, a journal may be damaged, and a pid may be given to somebody else.
"""

import contextlib
import os
import signal
from pathlib import Path


def parent(pid: int) -> int:
    """The parent of a process; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process was started by `ancestor`, through any number of others that live."""
    while pid > 1:
        pid = parent(pid)
        if pid == ancestor:
            return ancestor > 1
    return False


def send(pid: int, number: int, ancestor: int) -> bool:
    """Signal a process that descends from `ancestor`; False, and nothing done, for any other."""
    if pid <= 1:
        return False
    try:
        handle = os.pidfd_open(pid)  # stands for this process, even if its pid is given away
    except ProcessLookupError:
        return False
    try:
        if not descends(pid, ancestor):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        return True
    finally:
        os.close(handle)
