"""Stage 9, publish: write the manifest last, then make the dataset visible by one rename.

Objects cannot be renamed: the store copies the shards to their place, and the manifest, written
last, makes them a dataset.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from penstock.data.format.columns import Columns
from penstock.data.format.manifest import BUILD_RECORD, MANIFEST, SHARDS, TOKENIZER, Json, Manifest
from penstock.data.store.object_path import ObjectPath, remove_tree
from penstock.data.workers.pool import Task
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

    If a killed build had published it already, use that. Objects were copied by `copy_tasks`.
    """
    target = home / f"{manifest.name}@{manifest.version}"
    if is_published(target):
        remove_tree(folder)
        return target
    files = {BUILD_RECORD: record, TOKENIZER: tokenizer, MANIFEST: manifest.to_json().encode()}
    if lines := [json.dumps(one) + "\n" for one in aside]:
        files = {ASIDE: "".join(lines).encode(), **files}
    if isinstance(target, ObjectPath):
        for name, content in files.items():
            (target / name).write_bytes(content)
        return target
    _sweep(folder, manifest)
    for name, content in files.items():
        write_synced(folder / name, content)
    sync(folder / SHARDS)
    sync(folder)
    folder.rename(target)
    sync(home)
    return target


def copy_tasks(home: Path, folder: Path, manifest: Manifest, results: Path) -> list[Task]:
    """Return the tasks that copy the shards in an object store to where the dataset will be."""
    target = home / f"{manifest.name}@{manifest.version}"
    if not isinstance(target, ObjectPath) or is_published(target):
        return []
    return [
        Task(results / f"{n:06d}", _copy_files, (folder, target, tuple(shard.files())), shard.bytes)
        for n, shard in enumerate(manifest.shards)
    ]


def _copy_files(folder: ObjectPath, target: ObjectPath, names: tuple[str, ...]) -> Columns:
    for name in names:
        folder.store.copy((folder / name).key, (target / name).key)
    return {}


def is_published(target: Path) -> bool:
    """Return whether a dataset is complete: a folder appears at once, objects one by one."""
    if isinstance(target, ObjectPath):
        return (target / MANIFEST).is_file()
    return target.is_dir()


def is_whole(folder: Path, manifest: Manifest) -> bool:
    """Return whether all files of the manifest exist. They were synced before they got names."""
    if isinstance(folder, ObjectPath):
        there = (folder / SHARDS).sizes()
        return all(
            there.get(file.removeprefix(f"{SHARDS}/")) == size
            for shard in manifest.shards
            for file, (_, size) in shard.files().items()
        )
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
