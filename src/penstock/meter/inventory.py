"""The inventory of this machine without torch: milliseconds, for plans that answer at once.

It reads what the kernel and the driver show, not what torch was built for; the probe uses torch.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.meter.devices import Devices, cpu_cores, host_memory_bytes

NVIDIA = Path("/proc/driver/nvidia/gpus")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class MachineInventory:
    """The devices and the CPU of this machine; the memory of a GPU is not known and 0."""

    devices: Devices
    cpu: str  # its model

    @property
    def fingerprint(self) -> str:
        """A text that changes when the hardware changes."""
        gpus = self.devices
        gib = round(host_memory_bytes() / 2**30)
        text = f"{cpu_cores()} × {self.cpu}, {gib} GiB"
        if limit := os.environ.get("ONEDNN_MAX_CPU_ISA"):  # has the effect of another CPU
            text += f", {limit}"
        return f"{gpus.count} × {gpus.name}, {text}" if gpus.kind == "cuda" else text


def take_inventory() -> MachineInventory:
    """Read the devices of this machine from the kernel and the driver."""
    cpu = cpu_model()
    if gpus := _visible(_gpus()):
        return MachineInventory(Devices("cuda", len(gpus), gpus[0], "", 0), cpu)
    return MachineInventory(Devices("cpu", cpu_cores(), "", "", host_memory_bytes()), cpu)


def cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.M)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"


def _gpus() -> list[str]:
    """Return the names of the GPUs, from the driver's files or else from `nvidia-smi`."""
    names = []
    for file in sorted(NVIDIA.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(), re.M)
        names.append(match[1].strip() if match else "NVIDIA GPU")
    command = None if names else shutil.which("nvidia-smi")
    if command is None:
        return names
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.+?) \(UUID", done.stdout, re.M)


def _visible(gpus: list[str]) -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    return gpus[: len([part for part in visible.split(",") if part.strip() not in ("", "-1")])]
