"""The fence of a host: until when its ranks may run, by its monotonic clock, in shared memory.

In a run on several hosts, the leader moves its own fence and each follower moves its fence when the
leader answers. The fork server ends the ranks once the fence is past. So a host that is cut off,
stopped or stuck ends its ranks even if no other process of it runs.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from penstock.private import private_folder
from penstock.run.folder import RunFolder

ENVIRONMENT = "PENSTOCK_FENCE"  # the path, for the fork server
CHECK_S = 0.25  # between two checks of the fork server
_MOMENT = struct.Struct("<d")


class Fence:
    """A moment that several processes of a host share through a file."""

    def __init__(self, path: Path) -> None:
        private_folder(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.ftruncate(file, _MOMENT.size)
        self._map = mmap.mmap(file, _MOMENT.size)
        os.close(file)
        self.path = path

    def move(self, until_s: float) -> None:
        _MOMENT.pack_into(self._map, 0, until_s)

    @property
    def passed(self) -> bool:
        return time.monotonic() > _MOMENT.unpack_from(self._map, 0)[0]


def fence_path(folder: RunFolder) -> Path:
    """Return where the fence of this host is for a run."""
    return folder.scratch / "fence"


def from_environment() -> Fence | None:
    """Return the fence that this process has to obey, if any."""
    path = os.environ.get(ENVIRONMENT)
    return Fence(Path(path)) if path else None
