"""Accelerators: peak rates, memory, links and power. All rates are dense, never with sparsity."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


@dataclass(frozen=True, kw_only=True)
class Accelerator(Fact):
    """One device as a program sees it. Rates are per device and per direction."""

    vendor: str
    year: int  # of release
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    fp4_tflops: float | None
    tf32_tflops: float | None
    fp32_tflops: float | None  # outside the tensor cores
    matmul_bf16_tflops: float | None  # the best bf16 matmul anybody measured
    memory_gib: float  # vendors print GB and mean this; a driver shows some per cent less
    memory_gb_per_s: float
    link: str  # inside the scale-up domain
    link_gb_per_s: float | None  # one device to all peers together
    peer_gb_per_s: float | None  # one device to one peer
    domain: int  # devices that share the link
    tdp_w: float | None
    price_usd_low: float | None  # to buy
    price_usd_high: float | None
    device_names: tuple[str, ...] = ()  # as torch.cuda.get_device_name() prints them

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    def peak_flops(self, precision: Precision) -> float | None:
        """Return the dense FLOP/s, or None if not published."""
        tflops: float | None = getattr(self, f"{precision}_tflops")
        return None if tflops is None else tflops * 1e12


TABLE = Table.of_csv("accelerators", Accelerator)
all, find, names = TABLE.all, TABLE.find, TABLE.names


@cache
def _by_device_name() -> dict[str, Accelerator]:
    return {device: accelerator for accelerator in TABLE for device in accelerator.device_names}


def for_device(torch_device_name: str) -> Accelerator | None:
    """Return the accelerator with exactly this torch device name, or None.

    A similar name is another part ("NVIDIA A10G" is not an A10), and a wrong peak would make every
    utilisation wrong.
    """
    return _by_device_name().get(torch_device_name)
