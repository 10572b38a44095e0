"""CPUs and their memory, by the kernel's RAPL counters (Intel, and AMD under the same name).

A package counts its cores and its graphics, so those parts are left out; memory (`dram`) is beside
it. `psys` counts everything once more, and `intel-rapl-mmio` the packages: neither is read. The
files count microjoules and wrap; since 2020 only root may read them, and containers hide them:
$PENSTOCK_POWERCAP is for one that has them mounted at another place.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.ledger.journal.energy import MeteredDevice
from penstock.meter.energy import GONE, DeviceReading

POWERCAP = Path("/sys/class/powercap")
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class _Zone:
    path: Path
    device: MeteredDevice
    range_j: float | None


class Rapl:
    def __init__(self, zones: list[_Zone]) -> None:
        self._zones = zones
        self.devices = [zone.device for zone in zones]
        self.ranges_j = [zone.range_j for zone in zones]

    def read(self) -> list[DeviceReading]:
        spent = [_number(zone.path / "energy_uj") for zone in self._zones]
        return [GONE if uj is None else DeviceReading(joules=uj / 1e6) for uj in spent]

    def close(self) -> None:
        pass


def find(powercap: Path | None = None) -> Rapl | str:
    """Return the meter, or why there is none."""
    powercap = powercap or Path(os.environ.get("PENSTOCK_POWERCAP", POWERCAP))
    # A CPU has no name of its own in the world; the boot that it runs in has.
    prefix = _text(BOOT) or "boot"
    zones: list[_Zone] = []
    for package in sorted(powercap.glob("intel-rapl:*")):
        name = _text(package / "name")
        if package.name.count(":") != 1 or not name.startswith("package"):
            continue
        zones.append(_zone(package, prefix, name, "package"))
        zones += [
            _zone(part, prefix, f"{name} dram", "dram")
            for part in sorted(powercap.glob(f"{package.name}:*"))
            if _text(part / "name") == "dram"
        ]
    if not zones:
        return "the CPUs' energy cannot be read: this kernel shows no RAPL counters"
    readable = [zone for zone in zones if _number(zone.path / "energy_uj") is not None]
    if not readable:
        return (
            f"the CPUs' energy cannot be read: {powercap}/intel-rapl:*/energy_uj is for root; "
            "`chmod a+r` on those files lets everybody"
        )
    return Rapl(readable)


def _zone(path: Path, prefix: str, name: str, kind: str) -> _Zone:
    range_uj = _number(path / "max_energy_range_uj")
    return _Zone(path, MeteredDevice(f"{prefix}/{name}", name, kind), range_uj and range_uj / 1e6)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
