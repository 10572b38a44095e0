"""A small disk for one drill, which can be full or read-only for a while. Needs root."""

import contextlib
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError

SIZE = "512m"
BUSY_S = 30.0


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs over `path`, which is a folder."""

    path: Path

    def mount(self) -> None:
        self._call("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "penstock-drill", str(self.path))

    def fill(self) -> None:
        """Write until not one more byte fits."""
        with (self.path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            size = 1 << 20
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2

    def freeze(self) -> None:
        """Make it read-only as soon as no process has a file open for writing."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                return self._call("mount", "-o", "remount,ro", str(self.path))
            except PenstockError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def mend(self) -> None:
        self._call("mount", "-o", "remount,rw", str(self.path))
        (self.path / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        self._call("umount", "-l", str(self.path))

    def _call(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PenstockError(f"`{' '.join(command)}`: {done.stderr.strip()}")
