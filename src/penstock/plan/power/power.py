"""The power model: the watts of a node, by what its accelerators are doing.

    node = (host + accelerators × (at rest, waiting … busy)) / supplies + fans; + network; × PUE

A stall burns power too: a waiting accelerator keeps its clocks up and polls, and fans run on. Two
levels, shares of the TDP, are fitted on metered 8 × H100 nodes (`power_fit`); the rest is physics
with a stated source. `penstock backtest power.csv` shows how far it is off.

Where the parts of a step are known, computing has its own level: products draw more than the mean
of the metered benchmarks, operations held up by memory less, and a device that waits for the host
waits. `penstock backtest runs.csv` compares that with metered runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.catalog.cooling import read as read_cooling
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.hardware.machine import Machine
from penstock.plan.job.constants import BUSY_SHARE, WAIT_SHARE
from penstock.plan.job.outcome import STEP_CAUSES, Band, StepTime
from penstock.plan.power.host import BOARD, HostPower, host_power
from penstock.plan.power.server import SERVER_BAND, server_w, server_words

# Nothing running: an immersed 8 × H100 node at rest is at 2,230 W (MLPerf v4.0 logs, before and
# after runs); with the host below, 80 of 700 W for each accelerator.
IDLE_SHARE = 0.11
# Supplies of the Titanium class at half load; MLPerf submitters state 0.94 to 0.98.
SUPPLIES = 0.96
# Fans follow temperatures: a short stall leaves them on. At rest, of what they take at work.
FANS_AT_REST = 0.5
# Switches per accelerator of a cluster of several nodes: 59.6 kW for 512 GPUs, as the submitter of
# the 64-node MLPerf run estimated from ratings. An upper estimate.
NETWORK_W = 116.0
# Other machines than the fitted ones: the best published model is 11 % off.
BAND = Band(0.88, 1.12)

# What an accelerator draws in an operation, as a share of its TDP, by what holds the operation up:
# 694 W in bf16 products and 530 W in sums of large tensors, of 700, on one H200 (`catalog draws`).
# The busy share above is a mean over whole benchmarks: a fifth of their time would be memory.
MULTIPLY_SHARE = 0.992
MEMORY_SHARE = 0.757
MULTIPLYING = ("matmul", "attention", "experts", "loss")
MOVING = ("elementwise", "optimizer", "outer")
STANDING = ("launch",)  # work is shorter than issuing it: the device stands by
# `recompute` and `reference` are passes of the same layers: they draw like the rest.

BUSY = (Cause.COMPUTE, Cause.EVALUATE)
RESTING = (Cause.STARTUP, Cause.DOWN)


@dataclass(frozen=True)
class TdpShares:
    """Shares of an accelerator's TDP."""

    busy: float = BUSY_SHARE
    wait: float = WAIT_SHARE

    def of(self, tdp_w: float) -> "PowerLevels":
        """Return the watts of one accelerator."""
        return PowerLevels(IDLE_SHARE * tdp_w, self.wait * tdp_w, self.busy * tdp_w)


@dataclass(frozen=True)
class PowerLevels:
    """Watts of one accelerator, or of one node at the plug."""

    rest_w: float
    wait_w: float
    busy_w: float

    def at(self, busy: float) -> float:
        """Return the watts when busy for this share of the time and waiting for the rest."""
        return self.wait_w + busy * (self.busy_w - self.wait_w)


@dataclass(frozen=True)
class PowerDraw:
    """Watts per accelerator, with its share of host, fans and network."""

    by_cause: Mapping[Cause, float]
    notes: tuple[str, ...]
    band: Band = BAND
    words: str = "power model; machines and network, before PUE"


def cooling_class(words: str) -> str | None:
    """Read `air`, `liquid` or `immersion` from a data sheet, a meter's log or a cluster file."""
    found = read_cooling(words)
    return found.node_cooling if found else None


def node(
    chip: PowerLevels,
    accelerators: int,
    cooling: str = "air",
    supplies: float = SUPPLIES,
    host: HostPower = BOARD,
) -> PowerLevels:
    """Return the watts of a node of which only its accelerators and its cooling are known."""

    def plug(chip_w: float) -> float:
        return (host.total_w(accelerators) + accelerators * chip_w) / supplies

    fans_w = host.fans_share(cooling) * plug(chip.busy_w)
    return PowerLevels(
        plug(chip.rest_w) + FANS_AT_REST * fans_w,
        plug(chip.wait_w) + fans_w,
        plug(chip.busy_w) + fans_w,
    )


def power_draw(machine: Machine, step: StepTime, cooling: str = "air") -> PowerDraw | None:
    """Return the watts of one accelerator's share of the machines by cause; None where its power
    is not known.
    """
    found = plug_levels(machine, cooling)
    if found is None:
        return _server_draw(machine, step)
    levels, words = found
    return _draw(machine, step, levels, words)


def accelerator_draw(machine: Machine, step: StepTime) -> PowerDraw | None:
    """Return the watts of one accelerator alone by cause, as its own meter reads them."""
    if machine.tdp_w is None:
        return None
    return _draw(machine, step, chip_power(machine, machine.tdp_w), ())


def _draw(
    machine: Machine, step: StepTime, levels: PowerLevels, words: tuple[str, ...]
) -> PowerDraw:
    busy = computing(machine, step.parts)
    watts = by_cause(levels, busy.share)
    return PowerDraw(watts | _redo(watts, step), (*words, *busy.notes))


def _server_draw(machine: Machine, step: StepTime) -> PowerDraw | None:
    """Return the watts of a rank on CPUs that only their threads are known of."""
    if machine.kind != "cpu" or not machine.cpu_threads:
        return None
    watts = dict(server_w(machine.cpu_threads / machine.per_node))
    words = server_words(machine.cpu_threads)
    return PowerDraw(watts | _redo(watts, step), (words,), SERVER_BAND, words)


def by_cause(levels: PowerLevels, computing: float = 1.0) -> dict[Cause, float]:
    """Return the watts of each cause; `computing` is how far from waiting to busy."""
    watts = dict.fromkeys(Cause, levels.wait_w)
    watts |= dict.fromkeys((*BUSY, Cause.REDO), levels.at(computing))
    return watts | dict.fromkeys(RESTING, levels.rest_w)


def _redo(watts: Mapping[Cause, float], step: StepTime) -> dict[Cause, float]:
    """Return the watts of steps done again: they have the mix of causes of any other."""
    joules = sum(step.causes[name] * watts[Cause(name)] for name in STEP_CAUSES)
    return {Cause.REDO: joules / step.step_s}


@dataclass(frozen=True)
class ComputingShare:
    """How far an accelerator that computes is from waiting (0) to busy (1); products draw more."""

    share: float
    notes: tuple[str, ...] = ()


def computing(machine: Machine, parts: Mapping[str, float]) -> ComputingShare:
    """Return what an accelerator draws while it computes, from the parts of the step in seconds.

    It is busy where the parts are not known, and on a CPU, where nobody measured them apart.
    """
    seconds = [
        sum(parts.get(name, 0.0) for name in names) for names in (MULTIPLYING, MOVING, STANDING)
    ]
    total_s = sum(seconds)
    if not total_s or machine.tdp_w is None or machine.kind == "cpu":
        return ComputingShare(1.0)
    chip = chip_power(machine, machine.tdp_w)
    # A probe reads the watts of products.
    multiply_w = machine.probed.get("loaded_w", MULTIPLY_SHARE * machine.tdp_w)
    memory_w = multiply_w * MEMORY_SHARE / MULTIPLY_SHARE
    if machine.cap_w is not None:
        multiply_w, memory_w = min(multiply_w, machine.cap_w), min(memory_w, machine.cap_w)
    shares = [s / total_s for s in seconds]
    levels = (multiply_w, max(memory_w, chip.wait_w), chip.wait_w)
    watts = sum(share * w for share, w in zip(shares, levels, strict=True))
    multiplying, moving, standing = (f"{100 * share:.0f} %" for share in shares)
    note = (
        f"computing: {watts:.0f} W an accelerator, {multiplying} of it multiplying "
        f"({multiply_w:.0f} W), {moving} moving memory ({memory_w:.0f} W), {standing} waiting for "
        "the host (shares of the TDP measured on one H200)"
    )
    span_w = chip.busy_w - chip.wait_w
    return ComputingShare((watts - chip.wait_w) / span_w if span_w > 0 else 1.0, (note,))


def plug_levels(machine: Machine, cooling: str) -> tuple[PowerLevels, tuple[str, ...]] | None:
    """Return the watts of one accelerator with its share of host, fans and network; None without a
    TDP.
    """
    if machine.tdp_w is None:
        return None
    kind = cooling_class(cooling) or "air"
    whole = node_power(machine, kind)
    assert whole
    words = _node_notes(machine, machine.tdp_w, kind)
    network_w = network_watts(machine)
    levels = PowerLevels(
        *(w / machine.per_node + network_w for w in (whole.rest_w, whole.wait_w, whole.busy_w))
    )
    network = f"network {network_w:.0f} W per accelerator (estimated from ratings)"
    return levels, (*words, network)


def network_watts(machine: Machine) -> float:
    """Return the watts of the switches between nodes, for one accelerator."""
    return NETWORK_W if machine.nodes > 1 else 0.0


def node_power(machine: Machine, cooling: str) -> PowerLevels | None:
    """Return the watts of a node of a machine that may know parts of its own power; None without
    a TDP.
    """
    if machine.tdp_w is None:
        return None
    chip = chip_power(machine, machine.tdp_w)
    count, given = machine.per_node, machine.host_w
    if given is None:
        return node(chip, count, cooling, host=host_power(machine.fact))
    # A host that somebody measured has its fans and what the supplies lose in it.
    return PowerLevels(*(count * w + given for w in (chip.rest_w, chip.wait_w, chip.busy_w)))


def chip_power(machine: Machine, tdp_w: float) -> PowerLevels:
    """Return the watts of one accelerator of the machine."""
    usual = TdpShares().of(tdp_w)
    # A probe that saw the accelerators at work knows better than their TDP.
    busy_w = machine.probed.get("loaded_w", usual.busy_w)
    idle_w = usual.rest_w if machine.idle_w is None else machine.idle_w
    if machine.cap_w is not None:
        busy_w, idle_w = min(busy_w, machine.cap_w), min(idle_w, machine.cap_w)
    return PowerLevels(idle_w, min(usual.wait_w, busy_w), busy_w)


def _node_notes(machine: Machine, tdp_w: float, cooling: str) -> tuple[str, ...]:
    chip, count = chip_power(machine, tdp_w), machine.per_node
    words = (
        f"accelerator: {chip.busy_w:.0f} W busy, {chip.wait_w:.0f} W waiting, {chip.rest_w:.0f} W "
        f"at rest (TDP {tdp_w:g} W × {BUSY_SHARE}, {WAIT_SHARE}, {IDLE_SHARE}: fitted on metered "
        "8 × H100 nodes, MLPerf v4.0)"
    )
    if machine.cap_w is not None:
        words += f", limited to {machine.cap_w:g} W"
    if machine.host_w is not None:
        return words, f"host: {machine.host_w:.0f} W a node (given)"
    host = host_power(machine.fact)
    return words, (
        f"host ({host.kind}): {host.total_w(count):.0f} W a node behind supplies of "
        f"{SUPPLIES:.0%}, fans {host.fans_share(cooling):.0%} of the full draw ({cooling}; "
        "estimated)"
    )


def mean_w(ledger: Ledger, draw: PowerDraw) -> float:
    """Return the mean watts over all causes of a ledger."""
    return (with_joules(ledger, draw).sum("joules") or 0.0) / ledger.total


def with_joules(ledger: Ledger, power: PowerDraw, off_rank_s: float = 0.0) -> Ledger:
    """Return the ledger with the energy of the machines before cooling, as a meter in the rack
    reads it. In `off_rank_s` of `down` they draw nothing.
    """
    joules = {cause: ledger.seconds[cause] * power.by_cause[cause] for cause in Cause}
    joules[Cause.DOWN] -= off_rank_s * power.by_cause[Cause.DOWN]
    where = Provenance("estimated", power.words)
    return ledger.with_quantity("joules", joules, where)
