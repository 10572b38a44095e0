"""The devices of this machine: accelerators, CPU cores and memory."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Devices:
    """The accelerators of a machine, or its CPU cores where it has none."""

    kind: str  # "cuda" or "cpu"
    count: int  # accelerators, or CPU cores
    name: str  # as torch prints it; "" on a CPU
    cuda: str  # version torch was built with; "" on a CPU
    memory_bytes: int  # of one accelerator, or of the machine
    uuids: tuple[str, ...] = ()  # of the accelerators, in the order of their ranks

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"{self.count} CPU core{'s' if self.count > 1 else ''}"
        return f"{self.count} × {self.name.removeprefix('NVIDIA ')}, CUDA {self.cuda}"

    def ranks(self, asked: str | int) -> int:
        """Return how many ranks `cluster.accelerators` means here.

        On a CPU a rank needs a core of its own; past four ranks, more threads in a rank are faster
        than more ranks that talk over sockets.
        """
        if asked == "all":
            return self.count if self.kind == "cuda" else min(self.count, 4)
        if int(asked) > self.count and self.kind == "cuda":
            raise PenstockError(
                f"cluster.accelerators = {asked}: this machine has {self}; "
                f"ask for {self.count} or fewer"
            )
        if int(asked) > 4 * self.count:
            raise PenstockError(
                f"cluster.accelerators = {asked}: this machine has {self}, and more than four "
                f"ranks on a core only wait for each other; ask for {4 * self.count} or fewer"
            )
        return int(asked)

    def threads(self, ranks: int) -> int:
        """Return the CPU threads of each rank."""
        return (
            max(1, cpu_cores() // ranks)
            if self.kind == "cpu"
            else max(1, min(8, cpu_cores() // ranks))
        )


def cpu_cores() -> int:
    """Return the cores that this process may use: fewer than all in a container."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _number(CGROUP / "cpu/cpu.cfs_quota_us")
    period = _number(CGROUP / "cpu/cpu.cfs_period_us")
    with contextlib.suppress(OSError, ValueError):  # the second version of cgroups
        quota, period = map(int, (CGROUP / "cpu.max").read_text().split())
    return max(1, min(allowed, -(-quota // period))) if quota > 0 and period > 0 else allowed


def host_memory_bytes() -> int:
    """Return the memory of the machine, or of the container."""
    limits = [_number(CGROUP / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limit for limit in limits if limit > 0)


def _number(path: Path) -> int:
    """Return the number in a file of the kernel; 0 when there is none, or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def visible_gpus() -> int:
    """Count the GPUs that a process started now would use, by the driver and without torch.

    Torch may count otherwise (a build without CUDA, parts of GPUs): a guess, and quick.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [one.strip() for one in visible.split(",")]
    return min(count, len([one for one in named if one not in ("", "-1")]))


def guess() -> Devices:
    """Guess the devices without torch: their kind and number, not their names and memory."""
    gpus = visible_gpus()
    return Devices("cuda" if gpus else "cpu", gpus or cpu_cores(), "", "", 0)


def find() -> Devices:
    """Find the devices of this machine with torch."""
    import torch  # here, so that reading a `Devices` needs no torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        every = [torch.cuda.get_device_properties(i) for i in range(count)]
        return Devices(
            "cuda",
            count,
            every[0].name,
            torch.version.cuda or "?",
            every[0].total_memory,
            tuple(str(one.uuid) for one in every),
        )
    return Devices("cpu", cpu_cores(), "", "", host_memory_bytes())
