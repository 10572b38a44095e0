"""Damage to files: a flipped bit, a cut, a deletion; in checkpoints, in memory and in data."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from penstock.guard.format.published import published_folders, step_of
from penstock.guard.tiers.slots import sealed_slots
from penstock.ledger.journal.events import CheckpointSpan
from penstock.ledger.journal.read import lines_of, read_events
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.values import whole
from penstock.run.folder import RunFolder
from penstock.run.load import load

Harm = Callable[[Path], None]
BLOCK_BYTES = 1 << 20  # of data that has a checksum of its own


def flip(path: Path) -> None:
    """Flip one bit in the middle of every block, in place, so that mappings see it too."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for start in range(0, size, BLOCK_BYTES):
            at = (start + min(start + BLOCK_BYTES, size)) // 2
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def delete(path: Path) -> None:
    path.unlink()


def settled(folder: RunFolder) -> bool:
    """Return whether all copies are sealed and all due checkpoints published.

    A save that is still being written would replace what is damaged now.
    """
    files = journal_files(folder.journal, "events")
    spans = [line.event for f in files for line in lines_of(read_events(f.path), CheckpointSpan)]
    copied = max((step for span in spans if (step := whole(span.step)) is not None), default=0)
    every = load(folder.run_file).guard.checkpoint
    assert not isinstance(every, str), "a scratch run saves every so many steps"
    due = copied // every.steps * every.steps if every.steps else 0
    kept = [one.step for fast in folder.scratch.glob("fast-*") for one in sealed_slots(fast)]
    saved = [step_of(path) for path in published_folders(folder.checkpoints)]
    return copied in kept and max(saved, default=0) >= due


def newest_on_disk(folder: RunFolder, harm: Harm) -> None:
    harm(_largest(published_folders(folder.checkpoints)[0]))


def newest_in_memory(folder: RunFolder, harm: Harm) -> None:
    found = [one for fast in folder.scratch.glob("fast-*") for one in sealed_slots(fast)]
    harm(_largest(max(found, key=lambda one: one.step).path))


def forget_memory(folder: RunFolder) -> None:
    """Delete the copies in memory, as if their host was lost."""
    for fast in folder.scratch.glob("fast-*"):
        shutil.rmtree(fast)


def shards(dataset: Path, harm: Harm) -> Callable[[], None]:
    """Damage the tokens of a dataset; return a function that restores them."""
    tokens = _largest(dataset / "shards")
    aside = dataset / "aside"
    shutil.copyfile(tokens, aside)
    harm(tokens)

    def mend() -> None:
        shutil.copyfile(aside, tokens)
        aside.unlink()

    return mend


def _largest(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)
