"""A first power model: what the machines of a run draw, by what they are doing.

    node = host + accelerators × (at rest … fully busy, by cause), × fans; + network; × PUE

A stall burns power too: a waiting accelerator keeps its clocks up and polls. The levels are shares
of the TDP, fitted on metered 8 × H100 nodes (`catalog/power.py`): mean error 1.1 % on the eight
rows fitted (1.4 % with each left out in turn) and 2.9 % with the ninth, which was not. For the same
rows TDP × time is 15 % off and the node's rated power 60 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Provenance
from penstock.plan.constants import BUSY_SHARE, WAIT_SHARE
from penstock.plan.machine import Machine
from penstock.plan.outcome import STEP_CAUSES, Band, StepTime

# Nothing running: an H100 shows about 70 of 700 W (estimated, recalled).
IDLE_SHARE = 0.10
# Host per accelerator while training, without fans: 1.8 kW of an 8 × H100 node for CPUs, memory,
# cards, switches and conversion (estimated). An H100 alone is then at 543 W when 75 % busy; OLMo's
# development runs measured 542 to 546 W on theirs (arXiv 2503.05804).
HOST_W = 225.0
# Fans of an air-cooled node, on top. The metered nodes are immersed and have none; an air-cooled
# one drew 22 % more on the same benchmark (MLPerf v4.1), with other software, so only part is fans.
FANS_SHARE = 0.15
# Switches per accelerator of a cluster of several nodes: 59.6 kW for 512 GPUs, as the submitter of
# the 64-node MLPerf run estimated from ratings. An upper estimate.
NETWORK_W = 116.0
# Other machines than the fitted ones: the best published model is 11 % off.
BAND = Band(0.88, 1.12)

BUSY = (Cause.COMPUTE, Cause.EVALUATE)
RESTING = (Cause.STARTUP, Cause.DOWN)


@dataclass(frozen=True)
class Draw:
    """Watts per accelerator, its share of host, fans and network included."""

    by_cause: Mapping[Cause, float]
    notes: tuple[str, ...]


def draw(machine: Machine, step: StepTime, cooling: str = "air") -> Draw | None:
    """What one accelerator's share of the machines draws by cause; None without a TDP."""
    if machine.tdp_w is None:
        return None
    # A probe that saw the accelerators at work knows better than their TDP.
    busy_w = machine.probed.get("loaded_w", BUSY_SHARE * machine.tdp_w)
    wait_w = WAIT_SHARE * machine.tdp_w
    idle_w = machine.idle_w if machine.idle_w is not None else IDLE_SHARE * machine.tdp_w
    given = machine.host_w is not None
    host_w = machine.host_w / machine.per_node if machine.host_w is not None else HOST_W
    # A host that somebody measured has its fans in it.
    fans = 1.0 if given or cooling != "air" else 1.0 + FANS_SHARE
    network_w = NETWORK_W if machine.nodes > 1 else 0.0

    def whole(accelerator_w: float) -> float:
        return (accelerator_w + host_w) * fans + network_w

    levels = {cause: whole(wait_w) for cause in Cause}
    levels |= {cause: whole(busy_w) for cause in BUSY}
    levels |= {cause: whole(idle_w) for cause in RESTING}
    # Steps done again are steps: the mix of causes of any other.
    step_j = sum(step.causes[name] * levels[Cause(name)] for name in STEP_CAUSES)
    levels[Cause.REDO] = step_j / step.step_s
    notes = (
        f"accelerator: {busy_w:.0f} W busy, {wait_w:.0f} W waiting, {idle_w:.0f} W at rest "
        f"(TDP {machine.tdp_w:g} W × {BUSY_SHARE}, {WAIT_SHARE}, {IDLE_SHARE}: fitted on metered "
        "8 × H100 nodes, MLPerf v4.0)",
        f"host: {host_w:.0f} W per accelerator ({'given' if given else 'estimated'}); fans "
        f"× {fans:g}; network {network_w:.0f} W per accelerator (estimated from ratings)",
    )
    return Draw(levels, notes)


def with_joules(ledger: Ledger, power: Draw) -> Ledger:
    """The ledger with what the machines draw, before cooling: what a meter in the rack says."""
    joules = {cause: ledger.seconds[cause] * power.by_cause[cause] for cause in Cause}
    where = Provenance("estimated", "power model; machines and network, before PUE")
    return ledger.with_quantity("joules", joules, where)
