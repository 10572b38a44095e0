"""Points of the training curve, in the order in which the run made them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from penstock.ledger.journal.records import read_records


def new_points(
    files: Iterable[tuple[int, Path]], read: dict[Path, int]
) -> list[tuple[int, np.ndarray]]:
    """Return (attempt, points by time) of curve files, and count in `read` what was read.

    In live mode the rank that reports changes, so an attempt can have several files.
    """
    parts: dict[int, list[np.ndarray]] = {}
    for attempt, path in files:
        new = read_records(path, "curve", read.get(path, 0))
        if len(new):
            read[path] = read.get(path, 0) + len(new)
            parts.setdefault(attempt, []).append(new)
    return _by_time(parts)


def first_points(
    files: Iterable[tuple[int, Path]], counts: Mapping[str, int]
) -> list[tuple[int, np.ndarray]]:
    """Return (attempt, points by time) of so many points of each file, by its name."""
    parts: dict[int, list[np.ndarray]] = {}
    for attempt, path in files:
        if count := counts.get(path.name, 0):
            parts.setdefault(attempt, []).append(read_records(path, "curve")[:count])
    return _by_time(parts)


def _by_time(parts: dict[int, list[np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    found = []
    for attempt in sorted(parts):
        points = np.concatenate(parts[attempt])
        found.append((attempt, points[np.argsort(points["t"], kind="stable")]))
    return found
