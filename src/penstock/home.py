"""Folder for files that outlive a run. Below every room, like `errors`."""

import os
from pathlib import Path

from penstock.private import refuse_strangers


def home() -> Path:
    """Return $PENSTOCK_HOME, or a folder in the user's cache.

    Compiled kernels are stored and run from there: a folder that somebody else made in /tmp is
    refused.
    """
    if own := os.environ.get("PENSTOCK_HOME"):
        return refuse_strangers(Path(own).expanduser())
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return refuse_strangers(Path(cache).expanduser() / "penstock")
