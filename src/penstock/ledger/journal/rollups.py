"""Rollups: sums over steps without reading them, one record per 256 steps.

The writer and the reader make a rollup with the same function from the same bytes, so a rollup is
exactly what the steps say, and a missing or torn one can be made again.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.ledger.journal.records import HEADER, PARTS, ROLLUP, ROLLUP_STEPS, STEP, read_records


@dataclass(frozen=True)
class StepTotals:
    """Sums over the steps of one file, for one rank of it; times are unix seconds."""

    steps: int
    first_step: int
    last_step: int
    start: float
    end: float
    total_s: float
    fetch_s: float
    compute_s: float
    exchange_s: float
    bubble_s: float


def rollup(steps: np.ndarray) -> np.ndarray:
    """Return one ROLLUP record for a block of STEP records."""
    out = np.zeros(1, ROLLUP)
    out["first_step"], out["last_step"] = steps["step"][0], steps["step"][-1]
    out["start"] = steps["start"][0]
    out["end"] = steps["start"][-1] + np.float64(steps["total"][-1])
    for part in PARTS:
        out[part] = steps[part].sum(dtype=np.float64)
    return out


def read_rollups(path: Path | str) -> np.ndarray:
    """Return the rollups of a `.steps` file, one per 256 steps and one for the tail.

    Only steps that no rollup on disk covers are read.
    """
    path = Path(path)
    stored = read_records(path.with_suffix(".rollups"), "rollups")
    # After a crash of the machine the rollups may have reached the disk before their steps.
    stored = stored[: _step_count(path) // ROLLUP_STEPS]
    tail = read_records(path, "steps", first=len(stored) * ROLLUP_STEPS)
    blocks = [tail[i : i + ROLLUP_STEPS] for i in range(0, len(tail), ROLLUP_STEPS)]
    return np.concatenate([stored, *(rollup(block) for block in blocks)])


def totals(path: Path | str) -> StepTotals | None:
    """Return the sums over the steps of a `.steps` file; None if it has none."""
    rollups = read_rollups(path)
    if len(rollups) == 0:
        return None
    sums = (float(rollups[part].sum()) for part in PARTS)
    return StepTotals(
        _step_count(Path(path)),
        int(rollups["first_step"][0]),
        int(rollups["last_step"][-1]),
        float(rollups["start"][0]),
        float(rollups["end"][-1]),
        *sums,
    )


def _step_count(path: Path) -> int:

    return max(0, path.stat().st_size - HEADER.size) // STEP.itemsize if path.exists() else 0
