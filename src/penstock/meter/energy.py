"""Energy from counters that wrap, reset, stop and vanish: never negative, never a silent zero.

A `Meter` reads the devices of one kind. `EnergyTally` turns its readings into joules, span by span,
each with its source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ledger.journal.energy import EnergySource, MeteredDevice

# A counter that stands still for this long does not count: the slowest known one is updated ten
# times a second.
STILL_S = 0.5
# No device draws this much more than its limit for a whole span; a counter that says so jumped.
MOST_OVER_LIMIT = 3.0
MOST_W = 5000.0  # for a device that does not report its limit


@dataclass(frozen=True)
class DeviceReading:
    """A reading of one device; None where it does not report a value."""

    joules: float | None = None  # of its counter, from any starting point
    watts: float | None = None
    limit_w: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: int = 0

    def known(self) -> "DeviceReading":
        """Return the reading without NaN and negative values, which some drivers report."""
        return DeviceReading(
            _amount(self.joules),
            _amount(self.watts),
            _amount(self.limit_w),
            _amount(self.clock_mhz),
            _amount(self.temperature_c),
            self.throttled,
        )


def _amount(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < math.inf else None


GONE = DeviceReading()


class Meter(Protocol):
    """The energy counters of the devices of one kind."""

    @property
    def devices(self) -> Sequence[MeteredDevice]: ...

    @property
    def ranges_j(self) -> Sequence[float | None]:
        """The value at which the counter of each device wraps; None where it does not wrap."""
        ...

    def read(self) -> Sequence[DeviceReading]:
        """Return one reading for each device, in order; `GONE` for one that does not answer."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Joules:
    joules: float
    seconds: float
    counted: EnergySource
    odd: str = ""  # what was wrong with the counter, in words


@dataclass
class EnergyTally:
    """The energy spans of one device. A reading ends a span; without one it stays open."""

    began_s: float
    range_j: float | None = None
    last: DeviceReading = GONE
    watts: float | None = None  # the last power that was known

    def take(self, t: float, reading: DeviceReading) -> Joules | None:
        """Return the span that ends now; None while the device is away: it may go on counting."""
        seconds, reading = t - self.began_s, reading.known()
        if seconds <= 0 or (reading.joules is None and reading.watts is None):
            return None
        counted_j = self._counted(reading, seconds)
        if counted_j is not None and (counted_j > 0 or seconds <= STILL_S):
            found = Joules(counted_j, seconds, EnergySource.COUNTER)
            own_w = counted_j / seconds if seconds > STILL_S else None
        else:
            own_w = _mean(reading.watts, self.last.watts)
            found = self._by_power(own_w, seconds, self._odd(reading, seconds))
        self.watts = _first(own_w, reading.watts, self.watts)
        self.last, self.began_s = reading, t
        return found

    def end(self, t: float) -> Joules | None:
        """Return the last span of a device that is away, from its power before that."""
        seconds = t - self.began_s
        if seconds <= 0:
            return None
        self.began_s = t
        return self._by_power(None, seconds, "no reading")

    def _by_power(self, mean_w: float | None, seconds: float, odd: str) -> Joules:
        if mean_w is not None:
            return Joules(mean_w * seconds, seconds, EnergySource.POWER, odd)
        if self.watts is not None:
            return Joules(self.watts * seconds, seconds, EnergySource.FILLED, odd)
        return Joules(math.nan, seconds, EnergySource.UNKNOWN, odd)

    def _counted(self, reading: DeviceReading, seconds: float) -> float | None:
        """Return the joules of the counter, if they are plausible."""
        if reading.joules is None or self.last.joules is None:
            return None
        spent_j = reading.joules - self.last.joules
        if self.range_j is not None:
            # Once, and more often if it was away for long: as often as its power says.
            spent_j += self.range_j if spent_j < 0 else 0.0
            expected_j = (self.watts or 0.0) * seconds
            spent_j += self.range_j * max(0, round((expected_j - spent_j) / self.range_j))
        limit_w = reading.limit_w or self.last.limit_w
        most_w = MOST_OVER_LIMIT * limit_w if limit_w else MOST_W
        # Counters are renewed some ten times a second: a short span may hold a long one's energy.
        return spent_j if 0 <= spent_j <= most_w * (seconds + STILL_S) else None

    def _odd(self, reading: DeviceReading, seconds: float) -> str:
        if reading.joules is None or self.last.joules is None:
            return ""
        moved = f"from {self.last.joules:.0f} to {reading.joules:.0f} J in {seconds:.1f} s"
        return f"the counter went {moved}"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _mean(one: float | None, other: float | None) -> float | None:
    known = [watts for watts in (one, other) if watts is not None]
    return sum(known) / len(known) if known else None
