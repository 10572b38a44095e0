"""The meters of this machine, and the mean power that they tell a probe."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.meter import nvml, rapl
from penstock.meter.energy import STILL_S, Meter, Tally


@dataclass(frozen=True)
class Found:
    """The meters, and why there are not more."""

    meters: tuple[Meter, ...] = ()
    notes: tuple[str, ...] = ()


def find(uuids: Sequence[str] = ()) -> Found:
    """The GPUs of these UUIDs, and the CPUs, as far as this process may read them."""
    found = [nvml.find(uuids)] if uuids else []
    every: list[Meter | str] = [*found, rapl.find()]
    return Found(
        tuple(one for one in every if not isinstance(one, str)),
        tuple(one for one in every if isinstance(one, str)),
    )


@dataclass
class Gauge:
    """The mean power since `start`: of one GPU, or of all CPUs with their memory."""

    meter: Meter
    mean: bool  # over the devices; else they are added up
    clock: Callable[[], float] = time.monotonic
    tallies: list[Tally] = field(default_factory=list)

    def start(self) -> None:
        began_s = self.clock()
        self.tallies = [Tally(began_s, range_j) for range_j in self.meter.ranges_j]
        for tally, reading in zip(self.tallies, self.meter.read(), strict=True):
            tally.last = reading.known()

    def watts(self) -> float | None:
        """None when nothing tells; at this moment where hardly any time has passed."""
        at_s, found = self.clock(), []
        for tally, reading in zip(self.tallies, self.meter.read(), strict=True):
            spent = tally.take(at_s, reading)
            if spent and spent.seconds > STILL_S and math.isfinite(spent.joules):
                found.append(spent.joules / spent.seconds)
            elif reading.watts is not None:
                found.append(reading.watts)
        return sum(found) / (len(found) if self.mean else 1) if found else None


def gauge(kind: str, uuids: Sequence[str] = ()) -> Gauge | None:
    """For a kind of torch device, if this process may read a meter of it."""
    found = nvml.find(uuids) if kind == "cuda" else rapl.find()
    if isinstance(found, str):
        return None
    made = Gauge(found, mean=kind == "cuda")
    made.start()
    return made
