"""The energy of a run as values: amounts with their bands, devices, and the whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Provenance

Source = Literal["measured", "estimated"]


@dataclass(frozen=True)
class EnergyAmount:
    """Joules with their source and the band that the true value is in."""

    joules: float
    source: Source
    low: float
    high: float

    def __add__(self, other: "EnergyAmount") -> "EnergyAmount":
        source: Source = "measured" if self.source == other.source == "measured" else "estimated"
        return EnergyAmount(
            self.joules + other.joules, source, self.low + other.low, self.high + other.high
        )

    def scaled(self, k: float) -> "EnergyAmount":
        return EnergyAmount(k * self.joules, self.source, k * self.low, k * self.high)

    def to_json(self) -> dict[str, Any]:
        return {"joules": self.joules, "source": self.source, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class DeviceEnergy:
    """The energy and the last reading of one device. None is a value it does not report."""

    node: str
    uuid: str
    name: str
    kind: str  # gpu, package or dram
    joules: float
    measured: float  # share
    t: float | None  # when it was read last
    watts: float | None
    limit_w: float | None
    clock_mhz: float | None
    temperature_c: float | None


@dataclass(frozen=True)
class EnergyByTime:
    """The joules of the nodes in each span of time, by cause: rows add up to `Energy.by_cause`."""

    start: np.ndarray
    end: np.ndarray
    paused: np.ndarray  # whether the run waited for a better hour
    joules: np.ndarray  # [spans, causes]


@dataclass(frozen=True)
class Energy:
    """The energy of a run by scope and by cause."""

    accelerator_j: EnergyAmount
    host_j: EnergyAmount  # the rest of the machines, and the network between them
    node_j: EnergyAmount
    facility_j: EnergyAmount | None  # with cooling and distribution; None without a PUE
    by_cause: Mapping[Cause, float]  # of the nodes; adds up to `node_j`
    accelerator_by_cause: Mapping[Cause, float]
    watts_now: float | None  # of the accelerators, metered; None without a fresh reading
    devices: tuple[DeviceEnergy, ...]
    notes: tuple[str, ...]
    by_time: EnergyByTime | None = None  # of a run by the hours of its site

    @property
    def provenance(self) -> Provenance:
        """The source of `by_cause`."""
        own = self.accelerator_j
        share = own.joules / self.node_j.joules if self.node_j.joules else 0.0
        rest = "the rest of the machines estimated"
        if own.source == "measured":
            return Provenance("estimated", f"{share:.0%} metered at the accelerators, {rest}")
        return Provenance("estimated", "the power model, where no meter could be read")

    def to_json(self) -> dict[str, Any]:
        facility = self.facility_j
        return {
            "accelerator_j": self.accelerator_j.to_json(),
            "host_j": self.host_j.to_json(),
            "node_j": self.node_j.to_json(),
            "facility_j": facility.to_json() if facility else None,
            "by_cause_j": {str(cause): j for cause, j in self.by_cause.items()},
            "accelerator_by_cause_j": {str(c): j for c, j in self.accelerator_by_cause.items()},
            "watts_now": self.watts_now,
            "devices": [vars(device) for device in self.devices],
            "notes": list(self.notes),
        }
