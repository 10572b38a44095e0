"""Seconds of starting, noticing and evaluating, as measured in runs. Each says in which.

A start has parts that end with the first process (the command, imports) and parts that every
restart has again: joining, building and compiled layers out of the cache. Only the second part
grows with nodes, because those wait for each other.
"""

from dataclasses import dataclass

from penstock.home import home
from penstock.plan.hardware.machine import Machine
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class StartTimes:
    """The parts of a start on one node."""

    launch_s: float  # the command: its imports, the data, the plan
    imports_s: float  # of ranks, that are still waited for then; where no earlier start kept them
    imports_warm_s: float
    compile_s: float  # layers, where no earlier start compiled them
    compile_warm_s: float  # traced again, and taken from the cache
    join_s: float  # rendezvous, the device, building the model
    evaluate_s: float  # of every evaluation, beside its tokens
    source: str


STARTS = {
    # 27.8 s cold and 12.8 s warm from `exec` to the first step, 160M parameters: 6.8 and 6.7 before
    # the launch, 9.3 and none of imports, 10.9 and 5.5 of compiling. The rest, 0.8 and 0.6, is
    # joining, one evaluation and a step of 0.12 s (docs/log.md, "The first step on an H200").
    "cuda": StartTimes(6.7, 9.3, 0.0, 10.9, 5.5, 0.3, 0.2, "measured on one H200"),
    # 3.5 s warm and cold, examples/stdlib.toml on two ranks: 1.2 before the launch, 0.7 of imports,
    # 0.3 until ranks are ready, then an evaluation (docs/design/start.md). Compiled layers: 19.1 s
    # of warm-up where nothing was compiled before; from the cache by the H200's share (estimated).
    "cpu": StartTimes(1.2, 0.7, 0.7, 19.1, 9.6, 0.3, 0.05, "measured on two cores"),
}
# How joining grows with nodes: from 5.8 s on one to the 10 minutes that a restart took on 100,000
# GPUs (FT-HSDP): 103 times over 12,500 nodes is nodes ** 0.49.
GROWTH = 0.49
# A process that ends is noticed by its supervisor: 0.13 s (docs/log.md, "From SIGKILL to the next
# new step"). A host that is gone is noticed after guard.timeout.
NOTICED_S = 0.13
# Replicas of live mode that lost one form a new group, and again when it is back: measured on CPU
# ranks as 1 to 3 s (docs/log.md).
REGROUP_S = 3.0
# Forward alone, of the time of forward and backward: a third of the matmuls.
FORWARD_SHARE = 1 / 3


def start_times(machine: Machine) -> StartTimes:
    """Return the times of a kind of accelerator; what was never tried is taken to be as CUDA."""
    return STARTS["cpu" if machine.kind == "cpu" else "cuda"]


def compiles(run: Run, machine: Machine) -> bool:
    """Tell whether layers are compiled: by default where there is a GPU."""
    asked = run.train.compile
    return asked == "on" or (asked == "auto" and machine.kind != "cpu")


def compiled_before(run: Run) -> bool:
    """Tell whether an earlier start on this machine has left compiled layers."""
    folder = home() / "compiled"
    return run.cluster.use == "here" and any(
        (folder / name).is_dir() for name in ("torch", "triton")
    )


def startup_s(run: Run, machine: Machine, nodes: int) -> float:
    """Return the seconds from the command until all ranks are ready, without loading weights."""
    one, warm = start_times(machine), compiled_before(run)
    once = one.launch_s + (one.imports_warm_s if warm else one.imports_s)
    if compiles(run, machine) and not warm:
        once += one.compile_s - one.compile_warm_s
    return once * machine.start_factor + restart_s(run, machine, nodes)


def restart_s(run: Run, machine: Machine, nodes: int) -> float:
    """Return the seconds until ranks are ready again, by the processes that outlived a failure."""
    one = start_times(machine)
    each = one.join_s + (one.compile_warm_s if compiles(run, machine) else 0.0)
    return float(each * nodes**GROWTH * machine.start_factor)
