"""Free memory and disk of a host, in bytes."""

import contextlib
import os
from pathlib import Path

MARGIN = 0.1  # of what is free is left to others


def free_bytes(folder: Path) -> int:
    """Return how much files in a folder may still take. In a tmpfs that is memory, shared with
    others."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if is_memory_backed(folder):
        free = min(free, _memory_bytes())
    return int(free * (1 - MARGIN))


def is_memory_backed(folder: Path) -> bool:
    """Return whether files in a folder are memory, by the table of mounts."""
    best, kind = "", ""
    path = str(folder.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, where, what, *_ = line.split()
            inside = path == where or path.startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(best):
                best, kind = where, what
    return kind in ("tmpfs", "ramfs")


def _memory_bytes() -> int:
    """Return what can still be allocated, on the machine and within the container's limit."""
    about = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    free = int(about["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # absent, or "max"
            left = int((group / limit).read_text()) - int((group / used).read_text())
            free = min(free, max(0, left))
    return free


def boot_id() -> str:
    """Return an identifier of this machine that lasts until it reboots."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else os.uname().nodename
