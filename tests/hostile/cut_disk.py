"""A disk that can lose its power: ext4 in an image file, on a loop device. Needs root.

The power cut is ext4's own shutdown without a flush of its log (as xfstests do it): what no `fsync`
or write-back has brought to the disk is gone, and the next mount replays the log. The image lies in
memory, so the disk has no cache of its own that could lose writes which the kernel has sent.
"""

import fcntl
import os
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

SIZE_BYTES = 96 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
NO_LOG_FLUSH = 2
BUSY_S = 30.0
# How a mount treats what was not synced. "ordered" is the default; the others lose more.
MOUNTS = {
    "ordered": "data=ordered",
    "late": "data=ordered,commit=300,noauto_da_alloc",
    "writeback": "data=writeback,commit=300,noauto_da_alloc",
}


def call(*command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}`: {done.stderr.strip()}")
    return done.stdout.strip()


@dataclass
class CutDisk:
    """A file system in `image`, mounted at `at`."""

    image: Path
    at: Path
    options: str = MOUNTS["ordered"]
    _loop: str = field(default="", init=False)

    def make(self) -> None:
        """Make it anew, empty, and mount it."""
        with self.image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        call("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
        self.at.mkdir(exist_ok=True)
        self._loop = call("losetup", "--find", "--show", self.image)
        self._mount()

    def cut(self) -> None:
        """Cut the power. Whoever has files open there has to be dead before `mend`."""
        handle = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def mend(self) -> None:
        """Mount it again after a cut; its log is replayed."""
        self._unmount()
        self._mount()

    def sync(self) -> None:
        """Bring all that was written so far to the disk."""
        call("sync", "--file-system", self.at)

    def remove(self) -> None:
        if self._loop:
            if os.path.ismount(self.at):
                self._unmount()
            call("losetup", "--detach", self._loop)
            self._loop = ""
        self.image.unlink(missing_ok=True)

    def _mount(self) -> None:
        call("mount", "-t", "ext4", "-o", self.options, self._loop, self.at)

    def _unmount(self) -> None:
        """Wait for those who still have a file open: a killed process takes a moment to go."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                call("umount", self.at)
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
