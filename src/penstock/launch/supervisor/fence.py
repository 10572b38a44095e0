"""Until when the ranks of a host may run: a moment of its monotonic clock, in shared memory.

On a run of several hosts it is moved on by whoever leads them, or by the word of whoever does. The
process that the ranks are forked from ends them once it is past, so a host that is cut off, stopped
or stuck stops its ranks without anybody having to be awake for it.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from penstock.private import private_folder

ENVIRONMENT = "PENSTOCK_FENCE"  # the path, for that process
LOOK_S = 0.25
_MOMENT = struct.Struct("<d")


class Fence:
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


def from_environment() -> Fence | None:
    """The one that this process has to mind, if any."""
    path = os.environ.get(ENVIRONMENT)
    return Fence(Path(path)) if path else None
