"""A sampler that reads the meters of a node during a run and records their energy.

It is a thread of whoever supervises the run on the node. It never holds the run up and never ends
it: a meter that fails is a device that is away.

Meters are read every two seconds. A span on record grows with the age of the run to half a minute,
since nobody needs the tenth hour by the second: a week of eight GPUs is 6 MB.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.ledger.journal.energy import EnergyJournal, EnergySpan, MeteredDevice
from penstock.ledger.journal.events import MeterOdd, MetersClosed
from penstock.meter import power
from penstock.meter.clock import now
from penstock.meter.devices import Devices, cpu_cores
from penstock.meter.energy import GONE, DeviceReading, EnergyTally, Joules, Meter
from penstock.meter.inventory import cpu_model

EVERY_S = 2.0
SPAN_OF_AGE = 0.01  # a span on record is this share of the time since the start
LONGEST_SPAN_S = 30.0
CLOSE_S = 5.0  # a driver that hangs is not waited for any longer


@dataclass
class _Metered:
    """One device: its tally, and the span that is not written yet."""

    number: int
    tally: EnergyTally
    open: EnergySpan | None = None
    odd: str = ""  # what is on record of it, so that it is told once

    def add(self, t: float, spent: Joules, reading: DeviceReading) -> EnergySpan | None:
        """Add to the open span; return the span before where the two cannot be joined."""
        span = EnergySpan(
            self.number,
            t,
            spent.seconds,
            spent.joules,
            spent.counted,
            _or_nan(reading.watts),
            _or_nan(reading.limit_w),
            _or_nan(reading.clock_mhz),
            _or_nan(reading.temperature_c),
            reading.throttled,
        )
        before, self.open = self.open, span
        if before is None or before.source is not span.source:
            return before
        self.open = replace(
            span,
            seconds=before.seconds + span.seconds,
            joules=before.joules + span.joules,
            throttled=before.throttled | span.throttled,
        )
        return None

    def take(self) -> EnergySpan | None:
        span, self.open = self.open, None
        return span


class Sampler:
    """The meters of one node, whose energy goes to a journal.

    The first span starts at `began`: energy used between the start of a run and the first reading
    counts too.
    """

    def __init__(
        self,
        journal: EnergyJournal,
        meters: Sequence[Meter],
        began: float,
        clock: Callable[[], float] = now,
    ) -> None:
        self.journal, self.meters, self.began, self.clock = journal, meters, began, clock
        ranges = [range_j for meter in meters for range_j in meter.ranges_j]
        self.devices = [
            _Metered(i, EnergyTally(began, range_j)) for i, range_j in enumerate(ranges)
        ]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="energy", daemon=True)

    def start(self) -> None:
        if self.devices:
            self._thread.start()

    def close(self) -> None:
        """End the last spans, unless a driver hangs: then only what is on record counts."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            self._look(last=True)
            self.journal.write_line(MetersClosed(), self.clock())
            self.journal.close()
        finally:
            self._lock.release()

    def sample(self) -> None:
        """Read every device once."""
        with self._lock:
            self._look(last=False)

    def _work(self) -> None:
        while True:
            try:
                self.sample()
            except OSError as error:  # a disk that stays full; the rest of the run is estimated
                self.journal.write_line(MeterOdd(what=f"not written: {error}"), self.clock())
                return
            if self._stop.wait(EVERY_S):
                return

    def _look(self, last: bool) -> None:
        done: list[EnergySpan] = []
        for device, (t, reading, why) in zip(self.devices, self._readings(), strict=True):
            spent = device.tally.take(t, reading)
            away = spent is None and t > device.tally.began_s
            if away and last:
                spent = device.tally.end(t)
            self._tell(device, t, why or "no reading" if away else spent.odd if spent else "")
            if spent is not None and (before := device.add(t, spent, reading)):
                done.append(before)
            if device.open and (last or device.open.seconds >= self._wanted_s(t)):
                done += filter(None, [device.take()])
        if done:
            self.journal.write(done)

    def _readings(self) -> Iterator[tuple[float, DeviceReading, str]]:
        for meter in self.meters:
            try:
                readings, why = meter.read(), ""
            except Exception as error:  # whatever a driver does, training goes on
                readings, why = [GONE] * len(meter.devices), f"{type(error).__name__}: {error}"
            t = self.clock()
            yield from ((t, reading, why) for reading in readings)

    def _wanted_s(self, t: float) -> float:
        # A reading comes a moment before or after its two seconds.
        return min(max(0.9 * EVERY_S, SPAN_OF_AGE * (t - self.began)), LONGEST_SPAN_S)

    def _tell(self, device: _Metered, t: float, odd: str) -> None:
        """Record when a counter begins to misbehave and when that is over."""
        if bool(odd) != bool(device.odd):
            number = self.journal.numbers[device.number]
            self.journal.write_line(MeterOdd(device=number, what=odd or "reads again"), t)
        device.odd = odd


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@contextmanager
def metered(
    folder: Path, node: str, machine: Devices, accelerators: int, began: float
) -> Iterator[None]:
    """Record the energy of the node in the journal in `folder` while the block runs."""
    found = power.find(machine.uuids[:accelerators])
    devices: list[MeteredDevice] = [device for meter in found.meters for device in meter.devices]
    journal = EnergyJournal(folder, node, devices)
    journal.opened(
        now(),
        accelerators=accelerators,
        cpu=cpu_model(),
        cores=cpu_cores(),
        cores_of_machine=os.cpu_count() or 1,
        notes=list(found.notes),
    )
    sampler = Sampler(journal, found.meters, began)
    sampler.start()
    try:
        yield
    finally:
        sampler.close()
        for meter in found.meters:
            meter.close()
