"""What hours are chosen by: the power and speed of a run, its deadline, and the schedule made."""

from dataclasses import dataclass
from typing import Literal

from penstock.run.hours import Hour

By = Literal["cost", "carbon", "market_carbon"]
COLUMN_OF: dict[By, str] = {
    "cost": "usd_per_kwh",
    "carbon": "gco2e_per_kwh",
    "market_carbon": "market_gco2e_per_kwh",
}
J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class PowerLevel:
    """A number of accelerators that the run can train on."""

    accelerators: int
    speed: float  # over that of all accelerators
    watts: float  # of the site, a mean over its life, cooling and idle accelerators included
    step_w: float = 0.0  # the same in a step; below `watts` where it is not known

    @property
    def needs_w(self) -> float:
        """Return what an hour must have: a mean with starts and waits in it is drawn by nobody."""
        return max(self.watts, self.step_w)


@dataclass(frozen=True)
class HourTerms:
    """What does not change during a run."""

    levels: tuple[PowerLevel, ...]  # all accelerators first
    paused_w: float  # of the site while the run pauses: the machines stay on
    switch_s: float  # without progress at every start: the save before it, starting, loading
    by: By = "cost"
    save_s: float = 0.0  # the part of `switch_s` in which the ranks before still work


@dataclass(frozen=True)
class HourState:
    """A run at a moment; times are unix seconds."""

    now_s: float
    deadline_s: float
    work_s: float  # left, at full speed
    level: int | None  # at which it trains now; None: no rank runs


@dataclass(frozen=True)
class Stretch:
    """A time in which the run does one thing."""

    start_s: float
    end_s: float
    level: int | None  # None: it pauses

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class HourSchedule:
    """What the run does until its end."""

    stretches: tuple[Stretch, ...]
    finish_s: float  # inf: no hour ever has the power for it
    late: bool  # it ends after the deadline

    @property
    def pauses(self) -> tuple[Stretch, ...]:
        return tuple(one for one in self.stretches if one.level is None)

    @property
    def paused_s(self) -> float:
        return sum(one.length_s for one in self.pauses)


def weight(hour: Hour, by: By) -> float:
    """Return what a kWh from the grid counts in an hour."""
    found: float | None = getattr(hour, COLUMN_OF[by])
    assert found is not None, "checked when the terms were made"
    return found


def grid_w(hour: Hour, watts: float) -> float:
    """Return what is drawn from the grid: generation on the site is used first."""
    return max(0.0, watts - (hour.onsite_w or 0.0))


def has_power(hour: Hour, watts: float) -> bool:
    """Tell whether the grid may deliver what is needed of it in an hour."""
    return hour.grid_limit_w is None or grid_w(hour, watts) <= hour.grid_limit_w
