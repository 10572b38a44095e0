"""Bytecode of Python's modules, where torch's folder has none and none can be written there.

Imports take three times as long then, in the command and in the fork server, at every start. So
both keep bytecode in a folder of Penstock's home. At the very first start, before it has any, the
cores that nothing else uses compile torch's modules ahead of the imports.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

LEAST_CORES = 4  # with fewer, the imports themselves need them
PACKAGES = ("torch", "sympy", "triton", "numpy")
UNUSED = r"/(testing|tests|onnx|benchmark|tensorboard|_export|quantization|sklearn|mobile)/"


_kept = False  # in a folder of Penstock's own, by this process


def is_lacking() -> bool:
    """Return whether torch would be compiled to bytecode at every start, without such a folder."""
    if _kept:
        return True
    torch = importlib.util.find_spec("torch")
    if sys.pycache_prefix or torch is None or torch.cached is None or torch.origin is None:
        return False
    if os.path.exists(torch.cached):
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(torch.origin), os.W_OK)


def keep_in(folder: str) -> None:
    """Keep the bytecode of what this process imports from now on in a folder."""
    global _kept
    sys.pycache_prefix, sys.dont_write_bytecode, _kept = folder, False, True


class CompileAhead:
    """Processes that compile the modules of large packages, on all cores but two."""

    def __init__(self, folder: str, cores: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if cores < LEAST_CORES or Path(folder).exists():
            return
        found = (importlib.util.find_spec(name) for name in PACKAGES)
        folders = [os.path.dirname(one.origin) for one in found if one and one.origin]
        command = [sys.executable, "-m", "compileall", "-qq", "-j", str(cores - 2), "-x", UNUSED]
        env = os.environ | {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        with contextlib.suppress(OSError):  # then the imports compile them
            self._process = subprocess.Popen(
                [*command, *folders],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Return whether they still compile."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the processes."""
        if self._process is None:
            return
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
