"""`train.precision = "auto"` on a machine of the planner: this one, or one that is described."""

from penstock.meter.precision import Bf16Speed
from penstock.plan.hardware.machine import Machine
from penstock.policy import precision as policy
from penstock.run.diff import with_fields
from penstock.run.schema.run import Run


def settled(run: Run, machine: Machine) -> tuple[Run, list[str]]:
    """Return the run with its precision chosen, and what a reader should know about it."""
    run, why, warning = decided(run, speed_of(machine))
    if why:
        return run, [f'train.precision = "auto" is {run.train.precision}: {why}']
    return run, [warning] if warning else []


def decided(run: Run, speed: Bf16Speed) -> tuple[Run, str, str]:
    """Return the run with its precision chosen, why "auto" is that, and a warning; "" for none."""
    if run.train.precision != "auto":
        return run, "", policy.warning(run.train.precision, speed)
    chosen = policy.choose_precision(speed, run.train.weights)
    return with_fields(run, {"train.precision": chosen.precision}), chosen.why, ""


def speed_of(machine: Machine) -> Bf16Speed:
    """Return the speed of bf16 matmuls by the machine's rates."""
    rates = machine.matmul_flops
    bf16, fp32 = rates.get("bf16"), rates.get("fp32")
    source = machine.sources.get("matmul_flops") or machine.sources.get("", "cluster file")
    source = source.partition(":")[0] if source.startswith("catalog") else source
    if bf16 is None:
        # Without any rate nothing is known; accelerators of the last years have the units.
        return Bf16Speed(0.0 if rates else None, machine.accelerator, source)
    return Bf16Speed(bf16 / fp32 if fp32 else None, machine.accelerator, source)
