"""The nodes that a run will train on, as far as they are known where it is submitted."""

from dataclasses import replace

from penstock.catalog import accelerators
from penstock.errors import PenstockError
from penstock.meter import devices
from penstock.meter.devices import Devices
from penstock.meter.inventory import take_inventory
from penstock.plan.hardware.cluster import machine_for
from penstock.run.schema.run import Run


def find_devices() -> Devices:
    """Find the devices of this machine without torch, where that can be done."""
    found = take_inventory().devices
    if found.kind == "cpu":
        return found
    chip = accelerators.for_device(found.name)
    return replace(found, memory_bytes=chip.memory_bytes) if chip else devices.find()


def devices_of_nodes(run: Run) -> Devices:
    """Return the devices of one node by `cluster.use`; "here" means nodes like this machine."""
    if run.cluster.use == "here":
        return find_devices()
    machine = machine_for(run).machine
    if machine.kind == "cpu":  # ranks of a CPU share its memory
        return Devices("cpu", machine.per_node, "", "", machine.memory_bytes * machine.per_node)
    return Devices("cuda", machine.per_node, machine.accelerator, "?", machine.memory_bytes)


def refuse_other_machine(run: Run, found: Devices) -> None:
    """Refuse to train on a machine that is not what `cluster.use` says."""
    if run.cluster.use == "here":
        return
    asked = devices_of_nodes(run)
    chip = accelerators.for_device(found.name) if found.kind != "cpu" else None
    same_chip = chip is None or found.name == asked.name or chip.name == asked.name
    known = accelerators.for_device(asked.name) if asked.kind != "cpu" else None
    if found.kind == asked.kind and (same_chip or known is None):
        return
    what = "nodes without accelerators" if asked.kind == "cpu" else f"{asked.name} nodes"
    fix = 'write cluster.use = "here"'
    if run.cluster.launcher == "local":
        fix = f"set cluster.launcher to what starts the run there, or {fix}"
    raise PenstockError(
        f'cluster.use = "{run.cluster.use}": it describes {what}, and this machine has {found}; '
        f"{fix}"
    )
