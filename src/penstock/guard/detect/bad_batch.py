"""Bad batches, stored for people to look at.

`bad/step-00000120/` in the run's folder has for each rank that reads samples its slice as numbers
(`rank-00000.npz`: tokens, and the positions of the samples in the training order) and as text, and
`about.json`. Only the newest are kept. A full disk costs the record, never the run.
"""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.files import write_atomic

KEEP = 20  # steps
SHOWN = 256  # samples written as text, of one rank


@dataclass(frozen=True)
class BadBatch:
    """One rank's slice of a bad batch."""

    step: int
    rank: int
    first: int  # position of the first sample
    tokens: np.ndarray  # [samples, sequence + 1]


def save_bad_batch(
    folder: Path,
    batch: BadBatch,
    about: dict[str, Any],
    decode: Callable[[list[int]], str],
) -> str:
    """Write a bad batch and return its folder; the rank that gives `about` writes that too."""
    home = folder / f"step-{batch.step:08d}"
    home.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    positions = np.arange(batch.first, batch.first + len(batch.tokens))
    np.savez_compressed(raw, tokens=batch.tokens.astype(np.uint32), positions=positions)
    (home / f"rank-{batch.rank:05d}.npz").write_bytes(raw.getvalue())
    (home / f"rank-{batch.rank:05d}.txt").write_text(_text(batch, decode))
    if about:
        write_atomic(home / "about.json", json.dumps({"step": batch.step, **about}, indent=1))
        _retain(folder)
    return str(home)


def _text(batch: BadBatch, decode: Callable[[list[int]], str]) -> str:
    parts = [
        f"--- sample {batch.first + row} ---\n{decode(tokens.tolist())}\n"
        for row, tokens in enumerate(batch.tokens[:SHOWN])
    ]
    left = len(batch.tokens) - SHOWN
    return "".join(parts) + (f"--- and {left} more, in the .npz ---\n" if left > 0 else "")


def _retain(folder: Path) -> None:
    """Delete the oldest by time of discovery: a run that went back finds earlier steps later."""
    found = sorted(folder.glob("step-*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in found[:-KEEP]:
        shutil.rmtree(path, ignore_errors=True)
