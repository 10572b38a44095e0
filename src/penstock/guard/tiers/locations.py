"""Folders and stores of a run's tiers."""

import os
from pathlib import Path

from penstock.guard.tiers.stores import CheckpointStore, DiskStore, open_store
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run


def stores_of_run(folder: RunFolder, run: Run) -> list[CheckpointStore]:
    """Return the durable stores of a run. Hosts that may not share a disk share the durable
    store."""
    here, durable = DiskStore(folder.checkpoints), run.guard.durable
    if durable is None:
        return [here]
    there = open_store(durable, folder.name)
    return [there] if run.cluster.nodes > 1 else [here, there]


def spill_folder(folder: RunFolder) -> Path:
    """Return the folder for copies that do not fit into memory."""
    return folder.path / ".spill"


def memory_folders(folder: RunFolder) -> list[Path]:
    """Return the folders of the fast tier. Raises OSError if they cannot be listed."""
    try:
        names = [name for name in os.listdir(folder.scratch) if name.startswith("fast-")]
    except FileNotFoundError:
        names = []
    return [*(folder.scratch / name for name in sorted(names)), spill_folder(folder)]
