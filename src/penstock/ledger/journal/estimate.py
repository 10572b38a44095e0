"""Estimate of step blocks from rollups alone: a first answer for a journal that takes long to read.

The sums are exact. The least time that any rank spent in the collectives of each step is not in
them: here it is the least sum of 256 steps, so `communicate` is slightly high and `peer_wait`
slightly low.
"""

from pathlib import Path

import numpy as np

from penstock.ledger.journal.digest import COLUMNS, StepBlocks
from penstock.ledger.journal.records import ROLLUP
from penstock.ledger.journal.rollups import read_rollups
from penstock.ledger.journal.steps import MEASURED_PARTS


def estimate_blocks(paths: list[Path], highest_before: int) -> list[StepBlocks]:
    """Return the blocks of each `.steps` file of an attempt."""
    read = [read_rollups(path) for path in paths]
    every = np.concatenate([np.empty(0, ROLLUP), *read])
    # Ranks that made other blocks, because they came later, have peers to compare with no more.
    key = every["first_step"].astype(np.uint64) << np.uint64(32) | every["last_step"]
    blocks, place = np.unique(key, return_inverse=True)
    least = np.full(len(blocks), np.inf)
    np.minimum.at(least, place, every["exchange"])
    of_files = np.split(least[place], np.cumsum([len(rollups) for rollups in read])[:-1])
    return [_blocks(*pair, highest_before) for pair in zip(read, of_files, strict=True)]


def _blocks(rollups: np.ndarray, least: np.ndarray, highest_before: int) -> StepBlocks:
    first, last = (rollups[name].astype(np.float64) for name in ("first_step", "last_step"))
    steps = np.maximum(last - first + 1, 1)
    fresh = np.clip((last - highest_before) / steps, 0.0, 1.0)
    explained = rollups["fetch"] + rollups["compute"] + rollups["exchange"] + rollups["bubble"]
    columns = {name: rollups[name] * fresh for name in MEASURED_PARTS} | {
        "start": rollups["start"],
        "end": rollups["end"],
        "steps": steps,
        "whole": np.maximum(rollups["total"], explained) * fresh,
        "kept": rollups["total"] * fresh,
        "redo": rollups["total"] * (1 - fresh),
        "fresh": steps * fresh,
    }
    rows = np.stack([columns[name] for name in COLUMNS], axis=1)
    return StepBlocks(
        rows,
        least * fresh,
        True,
        int(last.max(initial=-1)),
        float(rollups["start"].min(initial=np.inf)),
        float(rollups["end"].max(initial=-np.inf)),
    )
