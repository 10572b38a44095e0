"""The meters of a machine: RAPL without counting twice, NVML by UUID with what it does not say."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.meter import power, rapl
from penstock.meter.energy import GONE, DeviceReading
from penstock.meter.nvml import Nvml
from penstock.meter.rapl import Rapl

ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:0:2": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "dram",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def write_zones(root: Path, uj: int = 5_000_000) -> Path:
    for zone, name in ZONES.items():
        (root / zone).mkdir(parents=True)
        (root / zone / "name").write_text(f"{name}\n")
        (root / zone / "energy_uj").write_text(f"{uj}\n")
        (root / zone / "max_energy_range_uj").write_text("262143328850\n")
    return root


def test_rapl_counts_packages_and_their_memory_once(tmp_path: Path):
    found = rapl.find(write_zones(tmp_path))
    assert isinstance(found, Rapl)
    kinds = [(device.name, device.kind) for device in found.devices]
    assert kinds == [
        ("package-0", "package"),
        ("package-0 dram", "dram"),
        ("package-1", "package"),
        ("package-1 dram", "dram"),
    ]
    assert len({device.uuid for device in found.devices}) == 4
    assert found.read() == [DeviceReading(joules=5.0)] * 4
    assert found.ranges_j[0] == pytest.approx(262143.32885)


def test_a_rapl_file_that_vanishes_is_a_device_away(tmp_path: Path):
    found = rapl.find(write_zones(tmp_path))
    assert isinstance(found, Rapl)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    assert found.read() == [GONE, DeviceReading(joules=5.0), GONE, DeviceReading(joules=5.0)]


def test_why_there_is_no_rapl(tmp_path: Path):
    assert "no RAPL" in str(rapl.find(tmp_path))
    write_zones(tmp_path / "secret")
    for file in (tmp_path / "secret").glob("*/energy_uj"):
        file.unlink()
        file.mkdir()  # cannot be read, by root neither
    assert "chmod a+r" in str(rapl.find(tmp_path / "secret"))


def test_rapl_can_be_mounted_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_POWERCAP", str(write_zones(tmp_path)))
    found = power.find()
    assert [len(meter.devices) for meter in found.meters] == [4]
    assert found.notes == ()


class Driver(SimpleNamespace):
    """What `pynvml` is to `Nvml`: a driver with some GPUs that can be unloaded and loaded."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, gpus: dict[str, dict]) -> None:
        super().__init__(gpus=gpus, loaded=True, age=0)

    def _of(self, handle: tuple[str, int], name: str) -> object:
        uuid, age = handle
        if not self.loaded or age != self.age or uuid not in self.gpus:
            raise self.NVMLError("Uninitialized")
        if name not in self.gpus[uuid]:
            raise self.NVMLError("Not Supported")
        return self.gpus[uuid][name]

    def nvmlInit(self) -> None:
        if not self.loaded:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple[str, int]:
        if not self.loaded or uuid not in self.gpus:
            raise self.NVMLError("Not FoundMeters")
        return uuid, self.age

    def nvmlDeviceGetName(self, handle: tuple[str, int]) -> object:
        return self._of(handle, "name")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: tuple[str, int]) -> object:
        return self._of(handle, "mj")

    def nvmlDeviceGetPowerUsage(self, handle: tuple[str, int]) -> object:
        return self._of(handle, "mw")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: tuple[str, int]) -> object:
        return self._of(handle, "limit")

    def nvmlDeviceGetClockInfo(self, handle: tuple[str, int], which: int) -> object:
        return self._of(handle, "clock")

    def nvmlDeviceGetTemperature(self, handle: tuple[str, int], which: int) -> object:
        return self._of(handle, "temperature")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: tuple[str, int]) -> object:
        return self._of(handle, "reasons")


def gpu(**more: object) -> dict:
    return {"name": "NVIDIA H200", "mj": 12_000, "mw": 90_000, "limit": 700_000, **more}


def test_only_the_gpus_of_the_run_are_read():
    driver = Driver({f"GPU-{letter}": gpu(mj=n * 1000) for n, letter in enumerate("abcd")})
    meter = Nvml(driver, ["c", "GPU-a"])
    assert [device.uuid for device in meter.devices] == ["GPU-c", "GPU-a"]
    assert [reading.joules for reading in meter.read()] == [2.0, 0.0]


def test_what_a_gpu_does_not_say_is_none():
    driver = Driver({"GPU-a": gpu(clock=1980, reasons=4), "GPU-old": {"mw": 30_000}})
    whole, old = Nvml(driver, ["a", "old"]).read()
    assert whole == DeviceReading(12.0, 90.0, 700.0, 1980, None, 4)
    assert old == DeviceReading(None, 30.0)


def test_a_driver_that_is_loaded_again_is_read_again():
    driver = Driver({"GPU-a": gpu()})
    meter = Nvml(driver, ["a"])
    driver.loaded = False
    assert meter.read() == [GONE]
    assert meter.read() == [GONE]
    driver.loaded, driver.age = True, 1
    driver.gpus["GPU-a"]["mj"] = 7
    assert meter.read()[0].joules == 0.007
    driver.gpus = {}
    assert meter.read() == [GONE]


def test_a_gpu_that_is_not_there_is_away():
    assert Nvml(Driver({}), ["a"]).read() == [GONE]


def test_the_mean_power_of_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_POWERCAP", str(tmp_path))
    assert power.gauge("cpu") is None
    assert power.gauge("cuda", ["a"]) is None, "there is no driver here"
    write_zones(tmp_path, uj=0)
    found = power.gauge("cpu")
    assert found is not None
    assert found.watts() is None, "no time has passed: not a zero"
    at = [100.0]
    found.clock = lambda: at[0]
    found.start()
    at[0] = 102.0
    assert found.watts() is None, "counters that do not move are none"
    for zone in ZONES:
        (tmp_path / zone / "energy_uj").write_text("90000000")
    at[0] = 104.0
    assert found.watts() == 4 * 45.0
