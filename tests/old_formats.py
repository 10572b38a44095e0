"""Checkpoints as earlier versions of Penstock wrote them."""

import json
from pathlib import Path

from penstock.untrusted import hash_json


def as_format(checkpoint: Path, number: int) -> None:
    """Write the manifest of a checkpoint anew, in format 1, 2 or 3: its hash covered the files
    alone, and before format 3 there was no index."""
    path = checkpoint / "manifest.json"
    found = json.loads(path.read_text())
    files = found["files"]
    if number < 3:
        files = {name: entry for name, entry in files.items() if name != "index.json"}
    about = {"format": number, "step": found["step"], "blake3": hash_json(files), "files": files}
    path.write_text(json.dumps(about, indent=1))
