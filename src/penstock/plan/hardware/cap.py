"""Power limits of accelerators (`nvidia-smi -pl`) and what they leave of the speed.

Under a limit the clock falls until the draw fits. How much slower work gets is read off measured
curves (`penstock catalog caps`): of the accelerator itself where the catalog has them, else those
of an H200, by share of the TDP. Matmuls follow their curve, traffic of the memory its own, which
stays flat for long.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise

from penstock.catalog import power
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import Machine

MEASURED = "H200 SXM"


@cache
def curve(load: str, accelerator: str) -> tuple[tuple[float, float], ...]:
    """Return (limit over TDP, speed) from low to high; speeds never fall with the limit."""
    rows = [row for row in power.CAPS if row.load == load]
    own = [row for row in rows if row.accelerator == accelerator]
    found = sorted(
        (row.limit_w / row.tdp_w, row.speed)
        for row in own or [row for row in rows if row.accelerator == MEASURED]
    )
    highest, points = 0.0, []
    for share, speed in found:
        highest = max(highest, speed)
        points.append((share, highest))
    return tuple(points)


def speed_at(load: str, accelerator: str, share: float) -> float:
    """Return the speed under a limit of this share of the TDP; 1 without a limit."""
    points = curve(load, accelerator)
    if share >= points[-1][0]:
        return 1.0
    if share <= points[0][0]:  # nobody measured it: at best in proportion
        return points[0][1] * share / points[0][0]
    for (low, slow), (high, fast) in pairwise(points):
        if share <= high:
            return slow + (fast - slow) * (share - low) / (high - low)
    return 1.0


def least_share(accelerator: str) -> float:
    """Return the lowest measured limit, as a share of the TDP."""
    return curve("training", accelerator)[0][0]


def capped(machine: Machine, cap_w: float) -> Machine:
    """Return the machine with this limit set on each of its accelerators; a lower one stays."""
    if machine.tdp_w is None:
        raise PenstockError(
            f"accelerator.cap_w = {cap_w:g}: the TDP of {machine.accelerator} is not known; write "
            "accelerator.tdp_w"
        )
    if machine.curves:
        raise PenstockError(
            f"accelerator.cap_w = {cap_w:g}: {machine.name} was probed without knowing the limit; "
            "set it (`nvidia-smi -pl`), run `penstock probe` again and leave cap_w out"
        )
    share = cap_w / machine.tdp_w
    least = least_share(machine.accelerator)
    if share < least:
        raise PenstockError(
            f"accelerator.cap_w = {cap_w:g}: {share:.0%} of the TDP of {machine.tdp_w:g} W, below "
            f"what drivers set; write at least {least * machine.tdp_w:.0f}"
        )
    before = 1.0 if machine.cap_w is None else machine.cap_w / machine.tdp_w
    if share >= before:
        share = before
    matmul, slower = (speed_at("matmul", machine.accelerator, each) for each in (share, before))
    traffic, later = (speed_at("memory", machine.accelerator, each) for each in (share, before))
    return replace(
        machine,
        cap_w=share * machine.tdp_w,
        capped=matmul,
        matmul_flops={kind: rate * matmul / slower for kind, rate in machine.matmul_flops.items()},
        memory_bytes_per_s=machine.memory_bytes_per_s * traffic / later,
    )
