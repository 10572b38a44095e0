"""The speed of bf16 matmuls on this machine: measured, or estimated from the CPU's flags."""

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.meter.devices import Devices
from penstock.meter.inventory import CPUINFO

if TYPE_CHECKING:
    import torch

SIDE = 256  # a product of 0.3 ms in fp32; in bf16 0.2 ms, or 27 ms where the CPU has no units
SAMPLES = 8
HOPELESS = 4.0  # times slower than fp32: three samples are enough
# Instruction sets that multiply bf16, as /proc/cpuinfo calls them: x86, then ARM.
FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
# bf16 must be this much faster than fp32 to be chosen: it rounds more, and most elementwise work
# gains nothing. Measured matmuls: 2.1 to 3.9 × with AVX512_BF16, 0.33 × on AVX-512 without it,
# 0.01 × on AVX2.
FASTER = 1.2


@dataclass(frozen=True)
class Bf16Speed:
    """The speed of bf16 matmuls on one kind of device."""

    speedup: float | None  # bf16 rate over fp32 rate; 0: no bf16 units; None: units, rate unknown
    device: str  # such as "this CPU" or "H100 SXM5"
    source: str  # such as "measured" or "catalog"

    @property
    def fast(self) -> bool:
        return self.speedup is None or self.speedup >= FASTER

    @property
    def words(self) -> str:
        """Return the speed as one clause, with its source."""
        if self.speedup is None:
            return f"{self.device} has bf16 units ({self.source})"
        if self.speedup == 0:
            return f"{self.device} has no bf16 units ({self.source})"
        if self.speedup >= 1:
            factor, than = self.speedup, "faster"
        else:
            factor, than = 1 / self.speedup, "slower"
        return (
            f"bf16 matmuls are {_figure(factor)} × {than} than fp32 on {self.device} "
            f"({self.source})"
        )


def measure(machine: Devices) -> Bf16Speed:
    """Time bf16 beside fp32 on a CPU (10 ms, 0.1 s where bf16 is slow); ask the driver on CUDA.

    A GPU is not timed: that would take its memory for a context of the supervisor.
    """
    import torch

    if machine.kind == "cuda":
        name = machine.name.removeprefix("NVIDIA ")
        if not torch.cuda.is_available():  # a machine that is only described
            return Bf16Speed(None, name, "assumed")
        units = torch.cuda.is_bf16_supported(including_emulation=False)
        return Bf16Speed(None if units else 0.0, name, "driver")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fp32, bf16 = _seconds()
    finally:
        torch.set_num_threads(threads)
    return Bf16Speed(fp32 / bf16, "this CPU", "measured")


def _seconds() -> tuple[float, float]:
    """Return the best time of a product in fp32 and in bf16: the machine may be busy."""
    import torch

    wide = torch.ones(SIDE, SIDE)
    fp32 = min(_product_s(wide) for _ in range(SAMPLES))
    narrow, bf16 = wide.to(torch.bfloat16), float("inf")
    for sample in range(SAMPLES):
        bf16 = min(bf16, _product_s(narrow))
        if sample >= 2 and bf16 > HOPELESS * fp32:
            break
    return fp32, bf16


def _product_s(matrix: "torch.Tensor") -> float:
    began = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - began


def estimate(cpu: str) -> Bf16Speed:
    """Estimate the speed from the CPU's flags, without torch."""
    return Bf16Speed(2.0 if _has_units() else 0.02, cpu or "this CPU", "estimated from its flags")


def _has_units() -> bool:
    # oneDNN, which multiplies for torch, can be held to an older instruction set.
    held_to = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if held_to and not re.search("BF16|FP16|AMX|ALL|DEFAULT", held_to):
        return False
    try:
        found = re.search(r"^(flags|Features)\s*:\s*(.*)$", CPUINFO.read_text(), re.M)
    except OSError:
        return False
    return found is not None and not set(FLAGS).isdisjoint(found[2].split())


def _figure(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"
