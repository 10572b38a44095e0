"""A shift of the time of day for a run's processes; it jumps when the drill writes a number.

A drill must not set the machine's clock. A few lines that Python runs at its start shift what every
process of the run reads as the time of day.
"""

from dataclasses import dataclass
from pathlib import Path

_CODE = '''"""The time of day, shifted by the number in a file: a drill."""
import os, time

_real, _file = time.time, os.environ["PENSTOCK_SHIFT"]


def shifted() -> float:
    with open(_file) as file:
        return _real() + float(file.read() or 0)


time.time = shifted
time.time_ns = lambda: int(shifted() * 1e9)
'''


@dataclass(frozen=True)
class ClockShift:
    folder: Path

    def env(self) -> dict[str, str]:
        """Write the code and return the variables that make a command use it."""
        code = self.folder / "shift"
        code.mkdir()
        (code / "sitecustomize.py").write_text(_CODE)
        self.to(0.0)
        return {"PYTHONPATH": str(code), "PENSTOCK_SHIFT": str(self._file)}

    def to(self, seconds: float) -> None:
        aside = self._file.with_suffix(".aside")
        aside.write_text(str(seconds))
        aside.replace(self._file)

    @property
    def _file(self) -> Path:
        return self.folder / "shift.seconds"
