"""Start of a build on a Ray cluster: what its nodes must have and see, then the pool."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.data.build.build import Start, worker_bytes
from penstock.data.build.listing import BuildSource
from penstock.data.build.progress import BuildWatcher
from penstock.data.recipe.source import is_remote
from penstock.data.store.object_path import ObjectPath, location
from penstock.data.store.objects import is_url
from penstock.data.workers.pool import Executor
from penstock.data.workers.ray_cluster import (
    Needed,
    check_nodes,
    cluster_address,
    connect,
    import_ray,
)
from penstock.data.workers.ray_pool import RayPool
from penstock.errors import PenstockError

_RAY_BYTES = 300 << 20  # memory of a worker of Ray beside that of its task
_SOURCES = (
    "Every node reads sources itself: put them into an object store or a folder that all nodes "
    "share, and write that as path in [[source]]"
)
_HOME = (
    "Every node writes there: give --to s3://bucket/folder, or --to and a folder that all nodes "
    "share; for a bucket, nodes need the credentials in the environment of `ray start`"
)


def start_on_ray(on: str, watcher: BuildWatcher) -> Start:
    """Return what starts the workers of a build on the cluster that `--on` names.

    Raises PenstockError at once for a wrong address or if Ray is not installed.
    """
    address = cluster_address(on)
    import_ray()

    @contextmanager
    def start(sources: tuple[BuildSource, ...], work: Path) -> Iterator[Executor]:
        ray = connect(address)
        with RayPool(ray, worker_bytes(sources) + _RAY_BYTES) as pool:
            with _left_in(work.parent) as probe:
                check_nodes(ray, [probe, *_first_files(sources)])
            name, _, _ = work.name.partition("@")
            pool.lock(
                f"{location(work.parent)}/{name}",
                lambda: watcher.note("another driver of the cluster builds it: waits for it"),
            )
            yield pool

    return start


def _first_files(sources: tuple[BuildSource, ...]) -> list[Needed]:
    """Return one file of each source; files of the Hugging Face hub are left out."""
    needed = []
    for source in sources:
        for one in source.files[:1]:
            path = one.file.path
            if is_url(path):
                needed.append(Needed(path, one.bytes or -1, _SOURCES))  # 0: a server did not say
            elif not is_remote(path):
                needed.append(Needed(os.path.abspath(path), one.bytes, _SOURCES))
    return needed


@contextmanager
def _left_in(home: Path) -> Iterator[Needed]:
    """Leave a small file in the home for the nodes to find."""
    content = secrets.token_bytes(32)
    path = home / f".seen-{secrets.token_hex(8)}"
    try:
        if not isinstance(home, ObjectPath):
            home.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise PenstockError(
            f"{location(home)} cannot be written: {error.strerror or error}. {_HOME}"
        ) from None
    try:
        yield Needed(location(path), len(content), _HOME)
    finally:
        path.unlink(missing_ok=True)
