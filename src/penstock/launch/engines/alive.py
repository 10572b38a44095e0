"""The probe of a pod: does its part of the run live? `python -m penstock.launch.engines.alive`.

Ranks are not judged here: they may compile or load for as long as it takes, and the supervisor
restarts those that hang. Only a supervisor that is stuck itself needs somebody outside. The fence
(`launch/supervisor/fence.py`) tells: it moves every few seconds while this host leads, or follows
a leader that answers. A host whose fence has stood still for half an hour takes no part in the
run, trains nothing, and is replaced.
"""

import struct
import sys
import time
from pathlib import Path

from penstock.launch.supervisor import addresses
from penstock.run.folder import RunFolder

STUCK_S = 1800.0
STARTED = "--started"
_MOMENT = struct.Struct("<d")


def has_started(folder: RunFolder) -> bool:
    """Return whether `penstock train` holds the lock of the run, or did before it ended.

    The lock is only read: a test of it could be in the way of the run that wants it.
    """
    for name in (f"lock-{addresses.node()}", "lock"):
        try:
            process = int((folder.path / name).read_text())
        except (OSError, ValueError):
            continue
        if Path("/proc", str(process)).exists():
            return True
    return False


def is_stuck(folder: RunFolder, now_s: float) -> bool:
    """Return whether this host has neither led nor followed for too long.

    A host that has not met the others yet is not stuck, and a run on one host has no fence.
    """
    try:
        content = (folder.scratch / "fence").read_bytes()
        (until_s,) = _MOMENT.unpack(content)
    except (OSError, struct.error):
        return False
    return until_s > 0 and now_s > until_s + STUCK_S


def main(arguments: list[str]) -> int:
    """Exit with 0 if all is well, else with 1 and the reason."""
    *options, path = arguments
    folder = RunFolder(Path(path))
    if STARTED in options and not has_started(folder):
        print(f"{addresses.node()}: penstock train has not begun")
        return 1
    if is_stuck(folder, time.monotonic()):
        print(f"{addresses.node()}: neither leads nor follows since {STUCK_S / 60:.0f} minutes")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
