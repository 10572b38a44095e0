"""What the meters of a node counted, on record: one writer, whatever the meters do."""

import math
from pathlib import Path

import numpy as np
import pytest

from fake_meter import FakeMeter, gpus
from penstock.ledger.journal.energy import (
    EnergyJournal,
    EnergySource,
    EnergySpan,
    is_energy_file,
    read_nodes,
)
from penstock.meter.energy import GONE, DeviceReading
from penstock.meter.sampler import EVERY_S, LONGEST_SPAN_S, Sampler


class Clock:
    def __init__(self, t: float) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


def sampled(folder: Path, meter: FakeMeter, clock: Clock, began: float) -> Sampler:
    journal = EnergyJournal(folder, "node-a", meter.devices)
    journal.opened(clock(), notes=[])
    return Sampler(journal, [meter], began, clock)


def records(folder: Path) -> np.ndarray:
    (node,) = read_nodes(folder)
    return node.records


def test_every_second_of_every_device_is_on_record(tmp_path: Path):
    clock, meter = Clock(1000.0), FakeMeter(gpus(2), [])
    sampler = sampled(tmp_path, meter, clock, began=995.0)
    for second in range(21):
        clock.t = 1000.0 + second
        spent = 400.0 * second
        meter.says = [
            DeviceReading(spent, 400.0, 700.0, 1980.0, 50.0),
            DeviceReading(spent / 2, 200.0),
        ]
        sampler.sample()
    sampler.close()
    found = records(tmp_path)
    for device, watts in ((0, 400.0), (1, 200.0)):
        own = found[found["device"] == device]
        assert own["seconds"].sum() == pytest.approx(25.0)
        assert own["joules"].sum() == pytest.approx(25 * watts)
        starts = own["t"] - own["seconds"]
        assert starts[1:] == pytest.approx(own["t"][:-1]), "spans follow each other"
    assert set(found["source"]) == {EnergySource.POWER, EnergySource.COUNTER}
    assert found["limit_w"][0] == 700.0
    assert math.isnan(found["limit_w"][found["device"] == 1][0])


def test_spans_grow_with_the_run_and_lose_nothing(tmp_path: Path):
    clock, meter = Clock(0.0), FakeMeter(gpus(1), [DeviceReading(0.0, 300.0)])
    sampler = sampled(tmp_path, meter, clock, began=0.0)
    hours = 6
    for _ in range(int(hours * 3600 / EVERY_S)):
        clock.t += EVERY_S
        meter.says = [DeviceReading(300.0 * clock.t, 300.0)]
        sampler.sample()
    sampler.close()
    found = records(tmp_path)
    assert len(found) < 1100
    assert found["seconds"].min() <= EVERY_S
    assert found["seconds"].max() <= LONGEST_SPAN_S + EVERY_S
    assert found["joules"].sum(dtype=float) == pytest.approx(hours * 3600 * 300.0, rel=1e-5)


def test_a_meter_that_fails_is_a_device_away_and_is_told_once(tmp_path: Path):
    clock, meter = Clock(10.0), FakeMeter(gpus(1), [DeviceReading(0.0, 100.0)])
    sampler = sampled(tmp_path, meter, clock, began=10.0)
    for second in range(12, 40, 2):
        clock.t = float(second)
        meter.error = RuntimeError("driver") if 20 <= second < 30 else None
        meter.says = [DeviceReading(100.0 * (second - 10), 100.0)]
        sampler.sample()
    meter.says = [GONE]
    clock.t = 50.0
    sampler.close()
    (node,) = read_nodes(tmp_path)
    told = [line.payload["what"] for line in node.lines if line.kind == "odd"]
    assert told == ["RuntimeError: driver", "reads again", "no reading"]
    assert node.lines[-1].kind == "closed"
    assert node.records["joules"].sum() == pytest.approx(4000.0)
    assert node.records["source"][-1] == EnergySource.FILLED
    assert node.records["seconds"][-1] == pytest.approx(12.0)


def test_a_later_invocation_writes_on_behind_a_torn_record(tmp_path: Path):
    first = EnergyJournal(tmp_path, "host 1", gpus(1))
    first.opened(1.0)
    first.write([EnergySpan(0, 3.0, 2.0, 600.0, EnergySource.COUNTER)])
    first.close()
    path = next(tmp_path.glob("*.energy"))
    path.write_bytes(path.read_bytes() + b"torn")
    again = EnergyJournal(tmp_path, "host 1", list(reversed(gpus(2))))
    again.opened(10.0)
    spans = [EnergySpan(i, 12.0, 2.0, 100.0 * (i + 1), EnergySource.COUNTER) for i in range(2)]
    again.write(spans)
    again.close()
    (node,) = read_nodes(tmp_path)
    assert node.name == "host 1"
    assert [node.devices[n].uuid for n in node.records["device"]] == ["GPU-0", "GPU-1", "GPU-0"]
    assert node.records["joules"].tolist() == [600.0, 100.0, 200.0]
    assert all(is_energy_file(file.name) for file in tmp_path.iterdir())


def test_garbage_is_no_energy(tmp_path: Path):
    journal = EnergyJournal(tmp_path, "a", gpus(1))
    journal.opened(1.0)
    journal.write([EnergySpan(0, 3.0, 2.0, 600.0, EnergySource.COUNTER)])
    journal.close()
    path = next(tmp_path.glob("*.energy"))
    path.write_bytes(path.read_bytes() + b"\xff" * 400)
    assert len(records(tmp_path)) == 1


def test_the_thread_reads_and_closes(tmp_path: Path):
    clock, meter = Clock(5.0), FakeMeter(gpus(1), [DeviceReading(0.0, 100.0)])
    sampler = sampled(tmp_path, meter, clock, began=4.0)
    sampler.start()
    clock.t = 6.0
    sampler.close()
    assert records(tmp_path)["seconds"].sum() == pytest.approx(2.0)
