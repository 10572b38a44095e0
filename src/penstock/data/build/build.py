"""Build of a dataset from a recipe: read, clean, label, deduplicate, tokenize, shard, publish.

Every stage writes files into a work folder and is skipped if they exist, so a build that was killed
at any moment continues where it stopped, and ends with the same version as an undisturbed one. The
version depends on content and recipe alone: not on paths, time, workers or machine.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from penstock.data.build.checks import refuse_unbuildable
from penstock.data.build.listing import BuildSource, build_key, list_sources
from penstock.data.build.open import build_lock, find_built_for_key, remember_built
from penstock.data.build.pipeline import Pipeline
from penstock.data.build.progress import BuildWatcher, SilentWatcher
from penstock.data.build.stage import StageRunner
from penstock.data.clean import custom
from penstock.data.format.locate import built_versions, datasets_home
from penstock.data.read.dataset import Dataset
from penstock.data.recipe.recipe import Recipe
from penstock.data.store.object_path import ObjectPath, location, remove_tree
from penstock.data.workers.pool import Executor, WorkerPool

WORK = ".building-"  # prefix of work folders
PART_BYTES = 16 << 20  # text in a part, which holds at least one document
LARGEST_PART_BYTES = 256 << 20  # of sets so large that there would be more than MOST_PARTS
MOST_PARTS = 1 << 15
_WORKER_BYTES = 400 << 20  # memory that a worker may need with the smallest parts
_MEMORY_BYTES = 4 << 30  # memory that a build may need

# Starts what runs the tasks of a build on these sources, in this work folder.
Start = Callable[[tuple[BuildSource, ...], Path], AbstractContextManager[Executor]]


def part_bytes(sources: tuple[BuildSource, ...]) -> int:
    """Return the size of parts: larger ones for large sets, whose parts are read by many tasks."""
    total = sum(one.bytes for source in sources for one in source.files)
    return max(PART_BYTES, min(LARGEST_PART_BYTES, total // MOST_PARTS))


def worker_bytes(sources: tuple[BuildSource, ...]) -> int:
    """Return the memory that a worker may need."""
    return _WORKER_BYTES + 4 * max(0, part_bytes(sources) - (16 << 20))


def default_workers(sources: tuple[BuildSource, ...]) -> int:
    """Return one worker per core, as long as they fit into the memory of a build."""
    return max(1, min(len(os.sched_getaffinity(0)), _MEMORY_BYTES // worker_bytes(sources)))


def build(
    recipe: Recipe,
    *,
    workers: int | None = None,
    watcher: BuildWatcher | None = None,
    home: Path | None = None,
    start: Start | None = None,
) -> Dataset:
    """Return the dataset of a recipe; build it unless it exists and its sources are unchanged.

    `start` starts other workers than processes of this machine, which must see `home`.
    """
    watcher = watcher or SilentWatcher()
    home = home or datasets_home()
    if not isinstance(home, ObjectPath):
        home = home.absolute()  # workers of a cluster have other current folders
    start = start or (lambda sources, work: WorkerPool(workers or default_workers(sources)))
    sources = list_sources(recipe)
    key = build_key(recipe, sources)
    work = home / f"{WORK}{recipe.name}@{key}"
    if (dataset := find_built_for_key(home, recipe.name, key)) and not work.exists():
        return dataset
    refuse_unbuildable(sources)

    for step in recipe.cleaning().steps:  # a mistake in one should not cost hours
        custom.check_step(step)

    def waiting(what: str, done: int, total: int) -> None:
        watcher.note(f"{recipe.name}: {what}")

    # A lock needs a folder. `RayPool` has one of its own.
    with nullcontext() if isinstance(home, ObjectPath) else build_lock(home, recipe.name, waiting):
        with start(sources, work) as executor:
            # Another process may have built it while this one waited.
            dataset = find_built_for_key(home, recipe.name, key)
            if dataset is None:
                before = built_versions(home, recipe.name)
                stages = StageRunner(executor, watcher)
                size = part_bytes(sources)
                folder = Pipeline(recipe, sources, home, work, stages, size).run()
                dataset = Dataset.open(location(folder))
                if before and dataset.version not in before:
                    there = ", ".join(f"{recipe.name}@{item}" for item in before[:3])
                    watcher.note(f"{dataset.id} is new: sources or recipe are not those of {there}")
                remember_built(home, recipe.name, key, dataset.version)
            for left in list(home.iterdir()):
                if left.name.startswith(f"{WORK}{recipe.name}@"):
                    remove_tree(left)
        return dataset
