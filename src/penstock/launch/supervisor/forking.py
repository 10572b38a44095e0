"""Helpers for processes that fork others: a pipe for SIGCHLD, and running a module after a fork."""

import io
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence

_CHUNK_BYTES = 1 << 16


class SigchldPipe:
    """A pipe that SIGCHLD writes to, so that one `select` waits for messages and for deaths."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        os.read(self._read, _CHUNK_BYTES)

    def close(self) -> None:
        """Restore the defaults. A forked process must call it: it has children of its own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)


def run_module(args: Sequence[str]) -> int:
    """Run `python -m ARGS…` in this process; return its exit code."""
    code = 1
    sys.argv[:] = args
    sys.modules.pop(args[0], None)  # it runs as `__main__`; what it imports stays loaded
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
    """Open the standard streams again, as Python does at its start: their files have changed."""
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
