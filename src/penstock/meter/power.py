"""The energy meters of this machine, and the mean power that a probe reads from them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.meter import nvml, rapl
from penstock.meter.energy import STILL_S, EnergyTally, Meter


@dataclass(frozen=True)
class FoundMeters:
    """The meters that can be read, and why others cannot."""

    meters: tuple[Meter, ...] = ()
    notes: tuple[str, ...] = ()


def find(uuids: Sequence[str] = ()) -> FoundMeters:
    """Find the meters of these GPUs and of the CPUs, as far as this process may read them."""
    found = [nvml.find(uuids)] if uuids else []
    every: list[Meter | str] = [*found, rapl.find()]
    return FoundMeters(
        tuple(one for one in every if not isinstance(one, str)),
        tuple(one for one in every if isinstance(one, str)),
    )


@dataclass
class MeanPower:
    """The mean power since `start`: of one GPU, or of all CPUs with their memory."""

    meter: Meter
    mean: bool  # over the devices; else they are added up
    clock: Callable[[], float] = time.monotonic
    tallies: list[EnergyTally] = field(default_factory=list)

    def start(self) -> None:
        began_s = self.clock()
        self.tallies = [EnergyTally(began_s, range_j) for range_j in self.meter.ranges_j]
        for tally, reading in zip(self.tallies, self.meter.read(), strict=True):
            tally.last = reading.known()

    def watts(self) -> float | None:
        """Return the mean power since `start`, the present power after a short time, or None."""
        at_s, found = self.clock(), []
        for tally, reading in zip(self.tallies, self.meter.read(), strict=True):
            spent = tally.take(at_s, reading)
            if spent and spent.seconds > STILL_S and math.isfinite(spent.joules):
                found.append(spent.joules / spent.seconds)
            elif reading.watts is not None:
                found.append(reading.watts)
        return sum(found) / (len(found) if self.mean else 1) if found else None


def gauge(kind: str, uuids: Sequence[str] = ()) -> MeanPower | None:
    """Return the mean power of a kind of torch device, if this process may read its meter."""
    found = nvml.find(uuids) if kind == "cuda" else rapl.find()
    if isinstance(found, str):
        return None
    made = MeanPower(found, mean=kind == "cuda")
    made.start()
    return made
