"""Stage 9, publish: write the manifest last, then make the dataset visible by one rename."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from penstock.data.format.manifest import BUILD_RECORD, MANIFEST, SHARDS, TOKENIZER, Json, Manifest
from penstock.files import sync, write_synced

ASIDE = "aside.jsonl"  # records that could not be read: the first of each reason


def publish(
    home: Path,
    folder: Path,
    manifest: Manifest,
    tokenizer: bytes,
    record: bytes,
    aside: Iterable[dict[str, Json]],
) -> Path:
    """Turn `folder`, which holds the shards, into the dataset; return its path.

    If a killed build had published it already, use that.
    """
    target = home / f"{manifest.name}@{manifest.version}"
    if target.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        return target
    _sweep(folder, manifest)
    lines = [json.dumps(one) + "\n" for one in aside]
    if lines:
        write_synced(folder / ASIDE, "".join(lines).encode())
    write_synced(folder / BUILD_RECORD, record)
    write_synced(folder / TOKENIZER, tokenizer)
    write_synced(folder / MANIFEST, manifest.to_json().encode())
    sync(folder / SHARDS)
    sync(folder)
    folder.rename(target)
    sync(home)
    return target


def is_whole(folder: Path, manifest: Manifest) -> bool:
    """Return whether all files of the manifest exist. They were synced before they got names."""
    return all(
        (folder / file).is_file() and (folder / file).stat().st_size == size
        for shard in manifest.shards
        for file, (_, size) in shard.files().items()
    )


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove the files that killed tasks left."""
    named = {file for shard in manifest.shards for file in shard.files()}
    for path in (folder / SHARDS).iterdir():
        if f"{SHARDS}/{path.name}" not in named:
            path.unlink()
