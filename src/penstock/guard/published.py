"""Which checkpoints exist, without torch: a folder `step-N` with a manifest."""

import re
from pathlib import Path

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-\d+")


def published(folder: Path) -> list[Path]:
    """The folders of all published checkpoints, newest first."""
    found = [m.parent for m in folder.glob(f"step-*/{MANIFEST}")] if folder.is_dir() else []
    # A copy that somebody put beside it has another name.
    return sorted((p for p in found if _NAME.fullmatch(p.name)), key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def newest(folder: Path) -> str | None:
    paths = published(folder)
    return str(paths[0]) if paths else None
