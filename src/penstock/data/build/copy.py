"""Copy of a dataset to a URL: content first, manifest last, so that what can be opened is complete.

An interrupted copy continues: files that are there with the right size are not sent again. At the
end every file is read back and hashed; one that does not match is sent once more.
"""

from pathlib import Path

from penstock.data.build.progress import BuildWatcher, SilentWatcher
from penstock.data.format.manifest import MANIFEST, TOKENIZER
from penstock.data.read.dataset import Dataset
from penstock.data.read.remote_files import stored_digest
from penstock.data.store.objects import Store, is_url
from penstock.errors import PenstockError, RunFailed


def copy_dataset(dataset: Dataset, url: str, watcher: BuildWatcher | None = None) -> str:
    """Copy the dataset to NAME@VERSION below `url`; return its address."""
    watcher = watcher or SilentWatcher()
    if not is_url(url):
        raise PenstockError(f"{url} is not a URL such as s3://bucket/datasets.")
    if is_url(dataset.where):
        raise PenstockError(f"{dataset.where} is not on this machine; copy from a local dataset.")
    store = Store(f"{url.rstrip('/')}/{dataset.id}")
    try:
        _send(dataset, store, watcher)
    except OSError as error:
        raise RunFailed(
            f"{dataset.id} was not copied in full: {error.strerror or error}. "
            "Give the same command again: it goes on with what is missing."
        ) from None
    return store.where("")


def _send(dataset: Dataset, store: Store, watcher: BuildWatcher) -> None:
    files = {TOKENIZER: (dataset.manifest.tokenizer, (dataset.folder / TOKENIZER).stat().st_size)}
    for shard in dataset.manifest.shards:
        files.update(shard.files())
    there = {one.name: one.size for one in store.list()}
    missing = {name: size for name, (_, size) in files.items() if there.get(name) != size}
    watcher.stage("copy", sum(missing.values()), len(missing))
    for name, size in missing.items():
        _put(store, name, dataset.folder / name)
        watcher.did(1, size)
    watcher.stage("verify", sum(size for _, size in files.values()), len(files))
    for name, (digest, size) in files.items():
        if stored_digest(store, name) != digest:
            watcher.note(f"{store.where(name)} is not what was sent; it is sent again")
            _put(store, name, dataset.folder / name)
            if stored_digest(store, name) != digest:
                raise OSError(f"{store.where(name)} was sent twice and is not what was sent")
        watcher.did(1, size)
    for path in sorted(dataset.folder.glob("*.json*")):  # records of the build, not of the version
        if path.name not in (MANIFEST, TOKENIZER):
            _put(store, path.name, path)
    _put(store, MANIFEST, dataset.folder / MANIFEST)


def _put(store: Store, name: str, path: Path) -> None:
    # An empty file has no parts to send.
    store.put(name, path if path.stat().st_size else b"")
