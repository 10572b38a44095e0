"""What a site can hold: its feed, its racks, their heat, and what would fit instead.

All is reckoned with the draw at work: every accelerator of a synchronised run works at the same
moment, so a feed carries all of them at once. What the nameplates add is said beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, log
from typing import Any

from penstock.catalog import cooling, nodes
from penstock.catalog.cooling import HallCooling
from penstock.errors import PenstockError
from penstock.plan.hardware.cap import capped, least_share, speed_at
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.power.limits import SiteLimit, amount
from penstock.plan.power.power import (
    PowerLevels,
    cooling_class,
    network_watts,
    node_power,
)
from penstock.plan.power.racks import RackUnit, site_watts_each, unit_of
from penstock.plan.power.server import server_words

# Of the heat of a rack with cold plates, what still goes to the air (GB200 NVL72, this catalog).
TO_AIR = 0.15


@dataclass(frozen=True)
class SiteUse:
    """What a machine takes of one of its sites; watts at the feed, cooling included."""

    accelerators: int  # at one site
    sites: int
    busy_w: float
    wait_w: float
    rest_w: float
    rated_w: float | None  # nameplates of the nodes, cooling included
    racks: int
    per_rack: int  # accelerators
    rack_w: float  # heat of a full rack
    fitting: int | None  # accelerators that one site can hold; None where it states no limit

    @property
    def swing_w(self) -> float:
        """Return the step of the load when all accelerators begin or end a wait together."""
        return self.busy_w - self.wait_w

    @property
    def drop_w(self) -> float:
        """Return the step of the load when a run stops."""
        return self.busy_w - self.rest_w

    def to_json(self) -> dict[str, Any]:
        return {
            "accelerators": self.accelerators,
            "sites": self.sites,
            "busy_w": self.busy_w,
            "wait_w": self.wait_w,
            "rest_w": self.rest_w,
            "rated_w": self.rated_w,
            "racks": self.racks,
            "accelerators_per_rack": self.per_rack,
            "rack_w": self.rack_w,
            "fitting": self.fitting,
            "swing_w": self.swing_w,
            "drop_w": self.drop_w,
        }


def hall_of(machine: Machine) -> HallCooling | None:
    return cooling.stated(machine.hall) if machine.hall else None


def rack_watts(machine: Machine) -> float | None:
    """Return the most that a rack may draw here: the least of its feed and the hall's cooling."""
    hall = hall_of(machine)
    found = [machine.rack_limit_w, hall.rack_w_high if hall else None]
    return min((limit for limit in found if limit is not None), default=None)


def use_of(machine: Machine) -> SiteUse | None:
    """Return what the machine takes of a site; None where its power is not known."""
    unit, levels = unit_of(machine), node_power(machine, cooling_class(machine.cooling) or "air")
    if unit is None or levels is None:
        return None
    pue, here = machine.pue or 1.0, _at_one_site(machine)
    each = [w / machine.per_node + network_watts(machine) for w in _three(levels)]
    busy_w, wait_w, rest_w = (here * w * pue for w in each)
    rated = unit.rated_w and here * (unit.rated_w / unit.accelerators + network_watts(machine))
    held = unit.in_rack(rack_watts(machine)) or 1
    return SiteUse(
        accelerators=here,
        sites=machine.sites,
        busy_w=busy_w,
        wait_w=wait_w,
        rest_w=rest_w,
        rated_w=rated and rated * pue,
        racks=ceil(here / (held * unit.accelerators)),
        per_rack=held * unit.accelerators,
        rack_w=held * unit.watts,
        fitting=fitting(machine),
    )


def fitting(machine: Machine) -> int | None:
    """Return how many accelerators one site holds, in whole nodes; None if it states no limit."""
    unit, each_w = unit_of(machine), site_watts_each(machine)
    if unit is None or each_w is None:
        return None
    limit_w = rack_watts(machine)
    held, found = unit.in_rack(limit_w), []
    if limit_w is not None and not held:
        return 0
    if machine.power_limit_w is not None:
        feed = floor(machine.power_limit_w / (each_w * unit.accelerators) * (1 + 1e-9))
        found.append(feed * unit.accelerators)
    if machine.racks is not None:
        found.append(machine.racks * held * unit.accelerators)
    return min(found, default=None)


def site_limits(machine: Machine) -> tuple[SiteLimit, ...]:
    """Return every limit that the site of a machine states, exceeded or not."""
    unit, use = unit_of(machine), use_of(machine)
    if unit is None or use is None:
        return ()
    return tuple(_limits(machine, unit, use))


def power_notes(machine: Machine) -> list[str]:
    """Return what a reader should know of the power and of the site where the run fits it."""
    notes = []
    if machine.tdp_w is None and machine.kind == "cpu" and machine.cpu_threads:
        notes.append(f"energy: {server_words(machine.cpu_threads)}")
    for limit in site_limits(machine):
        if limit.fits and limit.rated is not None and limit.rated > limit.available:
            rated, there = (amount(w, limit.unit) for w in (limit.rated, limit.available))
            notes.append(
                f"{limit.name}: fits at work ({limit.needs}), but nameplates add up to {rated}, "
                f"more than {there}: whoever runs the site may ask for a power limit "
                "(accelerator.cap_w)"
            )
    return notes


def _limits(machine: Machine, unit: RackUnit, use: SiteUse) -> Iterator[SiteLimit]:
    if machine.power_limit_w is not None:
        yield _feed(machine, use, machine.power_limit_w)
    if machine.rack_limit_w is not None:
        yield _rack(machine, unit, machine.rack_limit_w)
    if hall := hall_of(machine):
        yield _heat(machine, unit, hall)
    if machine.racks is not None:
        places = f"{use.racks:,} racks of {use.per_rack} accelerators are needed"
        near = [_fewer(machine, use)] if use.racks > machine.racks else []
        yield SiteLimit(
            "space",
            "site.racks",
            use.racks,
            machine.racks,
            "racks",
            places,
            f"the site has places for {machine.racks:,}",
            tuple(filter(None, near)),
        )


def _feed(machine: Machine, use: SiteUse, limit_w: float) -> SiteLimit:
    pue = (
        f"PUE {machine.pue:g} included" if machine.pue else "cooling not included: no PUE is given"
    )
    where = f" at each of {use.sites} sites" if use.sites > 1 else ""
    near = []
    if use.busy_w > limit_w:
        near = [_fewer(machine, use), _cap(machine, _node_w(machine, use, limit_w))]
    return SiteLimit(
        "power",
        "site.power_limit_w",
        use.busy_w,
        limit_w,
        "W",
        f"the machines draw {amount(use.busy_w, 'W')} at work{where} ({pue})",
        f"the feed gives {amount(limit_w, 'W')}",
        tuple(filter(None, near)),
        use.rated_w,
    )


def _node_w(machine: Machine, use: SiteUse, limit_w: float) -> float:
    """Return the watts that the feed has for each node."""
    each_w = limit_w / use.accelerators / (machine.pue or 1.0) - network_watts(machine)
    return each_w * machine.per_node


def under_feed(machine: Machine) -> tuple[Machine, str]:
    """Return the machine with the power limit that the feed of its site allows, and words for it.

    The limit is the one that `plan` advises, and so is what it leaves of the speed. A site that
    feeds all of them leaves the machine as it is, and says nothing.
    """
    use, limit_w = use_of(machine), machine.power_limit_w
    if use is None or limit_w is None or use.busy_w <= limit_w:
        return machine, ""
    cap_w = cap_for(machine, _node_w(machine, use, limit_w))
    fewer = _fewer(machine, use)
    if cap_w is None:
        raise PenstockError(
            f"site.power_limit_w: the feed gives {amount(limit_w, 'W')}, and the machines draw "
            f"more under the lowest power limit that was measured. {fewer or 'Not one node fits'}"
        )
    words = (
        f"site.power_limit_w: the feed gives {amount(limit_w, 'W')} of {amount(use.busy_w, 'W')}; "
        f"every accelerator is taken to run under a limit of {floor(cap_w)} W (accelerator.cap_w)"
    )
    return capped(machine, floor(cap_w)), words


def _rack(machine: Machine, unit: RackUnit, limit_w: float) -> SiteLimit:
    near = []
    if unit.watts > limit_w:
        near = [_cap(machine, limit_w * machine.per_node / unit.accelerators)]
        near.append(_other_machine(machine, limit_w))
    held = max(1, unit.in_rack(limit_w))
    return SiteLimit(
        "power",
        "site.rack_limit_w",
        held * unit.watts,
        limit_w,
        "W",
        _rack_words(machine, unit, held),
        f"a rack has {amount(limit_w, 'W')}",
        tuple(filter(None, near)),
        unit.rated_w and held * unit.rated_w,
    )


def _heat(machine: Machine, unit: RackUnit, hall: HallCooling) -> SiteLimit:
    held = max(1, unit.in_rack(rack_watts(machine)))
    missing = ""
    if cooling_class(machine.built_for) == "liquid" and hall.node_cooling == "air":
        missing = (
            f"and {1 - TO_AIR:.0%} of that heat goes into cold plates, for which this hall has no "
            "liquid"
        )
    needed, limit_w = held * unit.watts, hall.rack_w_high
    near = []
    if missing or needed > limit_w:
        near = [_other_machine(machine, limit_w), _other_hall(machine, needed)]
    return SiteLimit(
        "cooling",
        f'site.cooling = "{machine.hall}"',
        needed,
        limit_w,
        "W",
        f"{_rack_words(machine, unit, held)}, all of it heat",
        f"{hall.name} takes {amount(limit_w, 'W')} from a rack at best, {amount(hall.rack_w, 'W')} "
        f"as a rule ({hall.source_of('rack_w_high')})",
        tuple(filter(None, near)),
        unit.rated_w and held * unit.rated_w,
        missing,
    )


def _rack_words(machine: Machine, unit: RackUnit, held: int) -> str:
    what = f"{unit.accelerators} × {machine.accelerator}"
    if held > 1:
        what = f"{held} nodes of {what}"
    return f"a rack with {what} draws {amount(held * unit.watts, 'W')}"


def _fewer(machine: Machine, use: SiteUse) -> str:
    if not use.fitting:
        return ""
    count = use.fitting // machine.per_node
    return (
        f"{use.fitting:,} of the {use.accelerators:,} accelerators ({count:,} "
        f"{'node' if count == 1 else 'nodes'}) fit"
    )


def cap_for(machine: Machine, node_w: float) -> float | None:
    """Return the highest power limit under which a node draws no more than this; None if none."""
    assert machine.tdp_w
    kind = cooling_class(machine.cooling) or "air"
    low, high = least_share(machine.accelerator) * machine.tdp_w, machine.tdp_w

    def draws(cap_w: float) -> float:
        levels = node_power(replace(machine, cap_w=cap_w), kind)
        assert levels
        return levels.busy_w

    if draws(low) > node_w:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if draws(middle) <= node_w else (low, middle)
    return low


def _cap(machine: Machine, node_w: float) -> str:
    cap_w = cap_for(machine, node_w)
    if cap_w is None or machine.tdp_w is None or machine.curves:
        return ""
    speed = speed_at("training", machine.accelerator, cap_w / machine.tdp_w)
    return (
        f"all of them under a limit of {floor(cap_w)} W each (accelerator.cap_w), at "
        f"{speed:.0%} of the speed of {machine.tdp_w:g} W"
    )


def _other_machine(machine: Machine, limit_w: float) -> str:
    """Name the nodes of the catalog that fit and come nearest in speed."""
    own = machine.peak_flops.get("bf16")
    hall = hall_of(machine)
    best: tuple[float, str] | None = None
    for row in nodes.TABLE:
        if row.setting == "cloud" or cooling_class(row.cooling or "air") != "air":
            continue
        try:
            other = of_catalog(row.name, row.accelerators)
        except PenstockError:
            continue
        unit, peak = unit_of(other), other.peak_flops.get("bf16")
        if unit is None or not own or not peak or other.accelerator == machine.accelerator:
            continue
        held = unit.in_rack(limit_w)
        if not held or unit.watts > limit_w:
            continue
        words = (
            f"{held} {'node' if held == 1 else 'nodes'} of {row.name} in a rack "
            f"({amount(held * unit.watts, 'W')}, {held * unit.accelerators} accelerators of "
            f"{peak / 1e12:g} TFLOP/s instead of {own / 1e12:g})"
        )
        apart = abs(log(peak / own))
        if best is None or apart < best[0]:
            best = (apart, words)
    where = f" in this {hall.name} hall" if hall and best else ""
    return best[1] + where if best else ""


def _other_hall(machine: Machine, needed_w: float) -> str:
    """Name the least of the halls that takes this heat from such machines."""
    kind = cooling_class(machine.built_for) or "air"
    liquid = ("liquid", "immersion") if kind != "air" else ("air", "liquid", "immersion")
    for row in sorted(cooling.TABLE, key=lambda row: row.rack_w_high):
        if row.node_cooling in liquid and row.rack_w_high >= needed_w and row.name != machine.hall:
            return (
                f"a hall with {row.name} cooling, which takes {amount(row.rack_w, 'W')} as a rule "
                f"and {amount(row.rack_w_high, 'W')} at best"
            )
    return ""


def _at_one_site(machine: Machine) -> int:
    nodes_here = -(-machine.nodes // machine.sites)
    return min(machine.accelerators, nodes_here * machine.per_node)


def _three(levels: PowerLevels) -> tuple[float, float, float]:
    return levels.busy_w, levels.wait_w, levels.rest_w
