"""Carbon of making the accelerators: the part of it that falls on a run, by the hours it has them.

It is kept apart from the carbon of electricity and added to nothing: published figures count
different things, and most accelerators have none.
"""

from dataclasses import dataclass

from penstock.catalog import costs, facilities
from penstock.plan.hardware.machine import Machine

HOURS_A_YEAR = 365.25 * 24


@dataclass(frozen=True)
class EmbodiedCarbon:
    """The carbon of making what a run uses, spread over the life of the machines."""

    kg: float
    words: str  # how it came about, with its source


def embodied(machine: Machine, accelerator_hours: float) -> EmbodiedCarbon | None:
    """Return the part of a run; None where nobody published a figure for the accelerator.

    Every hour of the life of a machine bears the same part, whether it is used or not.
    """
    row = facilities.embodied(machine.accelerator)
    if row is None or row.typical is None or row.holds is None:
        return None
    each = row.typical / row.holds
    owned = machine.price.owned.years if machine.price else None
    usual = costs.find("years")
    years, whose = (owned, "given") if owned else (usual.value, usual.words)
    kg = accelerator_hours / (years * HOURS_A_YEAR) * each
    words = (
        f"{kg:.4g} kg CO2e = {accelerator_hours:.5g} accelerator-hours of {years:g} years "
        f"({whose}) × {each:g} kg each ({row.name}: {row.source_of('typical')}); "
        "not in the CO2e of the run"
    )
    return EmbodiedCarbon(kg, words)
