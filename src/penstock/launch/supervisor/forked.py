"""What the processes have in common that fork others: a wait for deaths, and a module to run."""

import io
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence

_CHUNK_BYTES = 1 << 16


class Wakeup:
    """A pipe that a signal writes a byte to, so that one `select` waits for messages and for
    deaths."""

    def __init__(self) -> None:
        self._read, wake = os.pipe()
        self._write = wake
        for end in (self._read, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        os.read(self._read, _CHUNK_BYTES)

    def close(self) -> None:
        """In a forked process, which has children of its own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)


def run_module(args: Sequence[str]) -> int:
    """Run `python -m ARGS…` in this process; its exit code."""
    code = 1
    sys.argv[:] = args
    sys.modules.pop(args[0], None)  # it runs as the main one; its imports stay
    try:
        runpy.run_module(args[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def renew_streams() -> None:
    """Open the standard streams as Python does when it starts: they may be other files now."""
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        mode = "rb" if name == "stdin" else "wb"
        stream = io.TextIOWrapper(
            os.fdopen(fd, mode, closefd=False),
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or os.isatty(fd),
            write_through=bool(os.environ.get("PYTHONUNBUFFERED")),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
