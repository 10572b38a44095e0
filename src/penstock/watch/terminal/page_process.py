"""A child process of `penstock train` that serves the page of its run."""

import os
import select
import subprocess
import sys

from penstock.run.folder import RunFolder

END_S = 5.0


class PageProcess:
    """A `penstock watch` process, started by `open` and ended by `close`. `poll` never waits."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.problem = ""

    def open(self) -> None:
        if self.process is not None:
            return
        where = ("--open",) if has_screen() else ("--no-open",)
        self.problem = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "watch", str(self.folder.path), *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the run
        )

    def poll(self) -> bool:
        """Read the first line of the process, its address; return whether there is a new one."""
        if self.process is None or self.address or self.process.stdout is None:
            return False
        if not select.select([self.process.stdout], [], [], 0)[0]:
            return False
        line = self.process.stdout.readline().decode(errors="replace").strip()
        if line.startswith("http"):
            self.address = line
        else:
            self.problem = line or "`penstock watch` ended at once"
            self.close()
        return True

    def close(self) -> None:
        process, self.process, self.address = self.process, None, ""
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def has_screen() -> bool:
    """Return whether a browser would open on the user's own screen."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
