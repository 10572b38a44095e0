"""A meter whose devices do what a test says."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.ledger.journal.energy import MeteredDevice
from penstock.meter.energy import DeviceReading


@dataclass
class FakeMeter:
    devices: Sequence[MeteredDevice]
    says: list[DeviceReading]  # now, one for each device
    ranges_j: Sequence[float | None] = ()
    error: Exception | None = None
    closed: bool = field(default=False)

    def __post_init__(self) -> None:
        self.ranges_j = self.ranges_j or [None] * len(self.devices)

    def read(self) -> list[DeviceReading]:
        if self.error:
            raise self.error
        return self.says

    def close(self) -> None:
        self.closed = True


def gpus(count: int) -> list[MeteredDevice]:
    return [MeteredDevice(f"GPU-{i}", "NVIDIA H200", "gpu") for i in range(count)]
