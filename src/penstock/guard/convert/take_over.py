"""Taking over a checkpoint of another run: the same files under a manifest that says so.

A fork begins with one, and `penstock checkpoint adopt` brings one. Nothing else makes a checkpoint
belong to another run.
"""

import contextlib
import json
from typing import Any

from penstock.guard.format.manifest import MANIFEST, CheckpointManifest
from penstock.guard.format.published import SCALARS, StoredCheckpoint, file_entry, folder_name
from penstock.guard.tiers.stores import FOREIGN, CheckpointStore


def take_over(found: StoredCheckpoint, store: CheckpointStore, run: str) -> CheckpointManifest:
    """Copy a whole checkpoint into a store of the run with identity `run`; return its new manifest.

    It is on disk when this returns. One that a killed call has published stays. A slot in memory
    has its scalars in its seals; here they become a file. Torch's `.metadata` is not in a slot:
    only torch's own tools would read it.
    """
    about, step = found.read_manifest(), found.content_step()
    assert step is not None, f"{found.path}: it does not tell its step"
    scalars = found.scalars
    origin = {"run": about.run, "name": _name(scalars), "step": step}
    # It has no fingerprint: a run goes on from the checkpoint of another run on purpose.
    added = {} if SCALARS in about.files else {SCALARS: json.dumps(scalars, indent=1).encode()}
    files = about.files | {name: file_entry(content) for name, content in added.items()}
    own = CheckpointManifest(
        step, files, run, "", about.layout or scalars.get("layout", {}), origin
    )
    if step in store.steps() and _is(store, own):
        return own
    store.begin(step)
    for name in about.files:
        store.put(step, name, found.path / name)
    for name, content in added.items():
        store.put(step, name, content)
    if step in store.steps():  # it was in this store already
        store.put_aside(step, FOREIGN)
    store.publish(step, own.to_bytes())
    return own


def _is(store: CheckpointStore, own: CheckpointManifest) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return (
            CheckpointManifest.from_bytes(store.read(f"{folder_name(own.step or 0)}/{MANIFEST}"))
            == own
        )
    return False


def _name(scalars: dict[str, Any]) -> str:
    table = scalars.get("run")
    return str(table.get("name", "")) if isinstance(table, dict) else ""
