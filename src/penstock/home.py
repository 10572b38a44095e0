"""Where Penstock keeps what outlives a run. Below every room, like `errors`."""

import os
from pathlib import Path


def home() -> Path:
    """$PENSTOCK_HOME, or a folder in the user's cache."""
    if own := os.environ.get("PENSTOCK_HOME"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "penstock"
