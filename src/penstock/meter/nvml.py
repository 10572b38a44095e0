"""NVIDIA GPUs, by the driver's own library: the energy counter, power, limit, clock, temperature.

Devices are named by UUID, so that a run that was given four GPUs of eight counts those four,
whatever order the driver has them in. A value that a part does not have is None (`[N/A]`); a device
that fails altogether is looked up anew the next time, since a driver that was reloaded has new
handles and counters that begin at zero.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from penstock.ledger.journal.energy import MeteredDevice
from penstock.meter.energy import GONE, DeviceReading


class Nvml:
    """`library` is the module `pynvml`, or what behaves like it."""

    def __init__(self, library: Any, uuids: Sequence[str]) -> None:
        self.library = library
        library.nvmlInit()
        self._uuids = [
            uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in uuids
        ]
        self._handles: list[Any] = [self._handle(uuid) for uuid in self._uuids]
        names = [h and self._try(library.nvmlDeviceGetName, h) for h in self._handles]
        self.devices = [
            MeteredDevice(uuid, str(name or "NVIDIA GPU"), "gpu")
            for uuid, name in zip(self._uuids, names, strict=True)
        ]
        self.ranges_j = [None] * len(self.devices)

    def read(self) -> list[DeviceReading]:
        return [self._read(i) for i in range(len(self._handles))]

    def close(self) -> None:
        with contextlib.suppress(self.library.NVMLError):
            self.library.nvmlShutdown()

    def _read(self, i: int) -> DeviceReading:
        if self._handles[i] is None:
            self._handles[i] = self._again(self._uuids[i])
        handle, lib = self._handles[i], self.library
        if handle is None:
            return GONE
        millijoules = self._try(lib.nvmlDeviceGetTotalEnergyConsumption, handle)
        milliwatts = self._try(lib.nvmlDeviceGetPowerUsage, handle)
        if millijoules is None and milliwatts is None:
            self._handles[i] = None
            return GONE
        limit = self._try(lib.nvmlDeviceGetEnforcedPowerLimit, handle)
        return DeviceReading(
            joules=_thousandth(millijoules),
            watts=_thousandth(milliwatts),
            limit_w=_thousandth(limit),
            clock_mhz=self._try(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_SM),
            temperature_c=self._try(lib.nvmlDeviceGetTemperature, handle, lib.NVML_TEMPERATURE_GPU),
            throttled=int(self._try(lib.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0)
            & 0xFFFFFFFF,
        )

    def _again(self, uuid: str) -> Any:
        """Open the library again, which is needed after the driver was reloaded."""
        with contextlib.suppress(self.library.NVMLError):
            self.library.nvmlInit()
        return self._handle(uuid)

    def _handle(self, uuid: str) -> Any:
        return self._try(self.library.nvmlDeviceGetHandleByUUID, uuid)

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self.library.NVMLError:
            return None


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def find(uuids: Sequence[str]) -> Nvml | str:
    """Return the meter, or why there is none."""
    import pynvml

    try:
        return Nvml(pynvml, uuids)
    except pynvml.NVMLError as error:
        return f"the GPUs' energy cannot be read: {error}"
