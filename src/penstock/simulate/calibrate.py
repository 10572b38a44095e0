"""This cluster's own rates: the failures that journals of its runs recorded, and their time."""

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.ledger.history import read_history
from penstock.plan.life.rates import software_at
from penstock.policy.quarantine import HardwareFault, part_at_fault
from penstock.run.folder import find_run
from penstock.simulate.fleets import Seen


def seen_in(runs: Sequence[str]) -> Seen:
    """Count the failures of runs by their journals. A fault that the quarantine would hold against
    a part is hardware; any other is software.
    """
    hardware = software = 0
    node_s = run_s = 0.0
    for name in runs:
        folder = find_run(name)
        launched = folder.read_launch_record()
        hosts = max(1, len(launched.hosts))
        for invocation, _ in read_history(folder.journal):
            node_s += invocation.window_s * hosts
            run_s += invocation.window_s * software_at(1.0, hosts)
            for fault in invocation.faults:
                broken = _is_hardware(fault.reason)
                hardware, software = hardware + broken, software + (not broken)
    if node_s <= 0:
        raise PenstockError(
            f"--calibrate {' '.join(runs)}: no time is recorded in these journals; name runs that "
            "have trained"
        )
    return Seen(hardware, node_s, software, run_s)


def _is_hardware(reason: str) -> bool:
    lost = "lost" in reason or "stopped answering" in reason
    fault = HardwareFault("", 0, reason, 0.0, "lost" if lost else "rank")
    return part_at_fault(fault) is not None
