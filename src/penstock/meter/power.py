"""Power counters, where a machine lets us read one: nvidia-smi for CUDA, RAPL for CPUs."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Protocol

RAPL = Path("/sys/class/powercap")


class Counter(Protocol):
    def start(self) -> None: ...

    def watts(self) -> float | None:
        """Since `start`, or at this moment where the counter tells power and not energy."""
        ...


class Smi:
    """The mean power of the GPUs at this moment."""

    def __init__(self, command: str) -> None:
        self.command = command

    def start(self) -> None:
        pass

    def watts(self) -> float | None:
        query = [self.command, "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
            drawn = [float(line) for line in done.stdout.split()]
        except (OSError, subprocess.SubprocessError, ValueError):  # "[N/A]" on some parts
            return None
        return sum(drawn) / len(drawn) if drawn else None


class Rapl:
    """Energy of all CPU packages; the files count microjoules and wrap."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.start()

    def start(self) -> None:
        self.began_s, self.began_uj = time.monotonic(), self._read()

    def watts(self) -> float | None:
        spent_s = time.monotonic() - self.began_s
        spent_uj = sum(self._read()) - sum(self.began_uj)
        return spent_uj / 1e6 / spent_s if spent_uj > 0 and spent_s > 0 else None

    def _read(self) -> list[int]:
        return [int(file.read_text()) for file in self.files]


def find(kind: str) -> Counter | None:
    """The counter for a kind of device, if this process may read one."""
    if kind == "cuda":
        command = shutil.which("nvidia-smi")
        return Smi(command) if command else None
    try:
        files = sorted(RAPL.glob("intel-rapl:?/energy_uj"))
        return Rapl(files) if files else None
    except (OSError, ValueError):
        return None
