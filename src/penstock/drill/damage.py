"""Damage to files: a flipped bit, a cut, a deletion; in checkpoints, in memory and in data."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from penstock.guard.published import published
from penstock.guard.slots import sealed
from penstock.run.folder import RunFolder

Harm = Callable[[Path], None]
BLOCK_BYTES = 1 << 20  # of data that has a checksum of its own


def flip(path: Path) -> None:
    """One bit in the middle of every block, in place: whoever has the file mapped sees it."""
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


def newest_on_disk(folder: RunFolder, harm: Harm) -> None:
    harm(_largest(published(folder.checkpoints)[0]))


def newest_in_memory(folder: RunFolder, harm: Harm) -> None:
    found = [one for fast in folder.scratch.glob("fast-*") for one in sealed(fast)]
    harm(_largest(max(found, key=lambda one: one.step).path))


def forget_memory(folder: RunFolder) -> None:
    """As when a host is lost with all that it held."""
    for fast in folder.scratch.glob("fast-*"):
        shutil.rmtree(fast)


def shards(dataset: Path, harm: Harm) -> Callable[[], None]:
    """Harms the tokens of a dataset; what is returned puts them back."""
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
