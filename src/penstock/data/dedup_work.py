"""The work folder of one deduplication, and how its files come to be.

A stage is a list of tasks; a task is a file and the pure function that computes its columns from
other files. A task whose file is there has ended and is not done again, so a killed run goes on
where it stopped, and the number of workers changes nothing but the time.
"""

import fcntl
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup_columns import Columns, write_columns
from penstock.data.manifest import Json
from penstock.data.shards import Progress
from penstock.errors import PenstockError, RunFailed
from penstock.files import sync, write_atomic

IDENTITY = "identity.json"


# Part → its texts and their scores. Called in any process, so it is picklable and has no state.
Read = Callable[[int], tuple[Sequence[str], npt.ArrayLike]]


def read_part(read: Read, part: int) -> tuple[Sequence[str], npt.NDArray[np.float64]]:
    texts, scores = read(part)
    given = np.asarray(scores, np.float64)
    if given.shape != (len(texts),):
        raise PenstockError(
            f"Deduplication: part {part} has {len(texts)} texts and scores of shape {given.shape}. "
            "Give one score for each text."
        )
    return texts, given


@dataclass(frozen=True)
class Task:
    path: Path
    compute: Callable[..., Columns]  # picklable: at the top of a module
    args: tuple[object, ...]

    def run(self) -> None:
        write_columns(self.path, self.compute(*self.args))


@contextmanager
def work_folder(folder: Path, identity: dict[str, Json]) -> Iterator[None]:
    """The folder for this work alone: one process at a time, never with files of other work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(
                f"{folder} is in use by another process. Wait for it, or use another folder."
            ) from None
        said = json.dumps(identity, sort_keys=True)
        path = folder / IDENTITY
        if path.exists() and path.read_text() != said:
            raise PenstockError(
                f"{folder} holds other work: {path.read_text()}, where {said} was asked for. "
                "Use another folder, or delete this one."
            )
        if not path.exists():
            write_atomic(path, said)
            sync(folder)
        for left in folder.rglob(".writing-*"):
            left.unlink()
        yield


def each_part(
    name: str,
    folder: Path,
    compute: Callable[..., Columns],
    parts: int,
    args: tuple[object, ...],
    workers: int,
    progress: Progress | None,
) -> list[Path]:
    """A stage of one file for each part: `compute(part, *args)`."""
    paths = [folder / f"{part:06d}" for part in range(parts)]
    tasks = [Task(path, compute, (part, *args)) for part, path in enumerate(paths)]
    run_stage(name, tasks, workers, progress)
    return paths


def run_stage(
    name: str, tasks: Sequence[Task], workers: int, progress: Progress | None = None
) -> None:
    """Ends when every task's file is there."""
    if workers < 1:
        raise PenstockError(f"Deduplication: workers is {workers}; give at least 1.")
    left = [task for task in tasks if not task.path.exists()]
    done = len(tasks) - len(left)
    tell = progress or (lambda what, done, total: None)
    tell(name, done, len(tasks))
    for _ in _each(left, workers):
        done += 1
        tell(name, done, len(tasks))


def _each(tasks: Sequence[Task], workers: int) -> Iterator[None]:
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            task.run()
            yield
        return
    # Spawned: a fork of a process with threads (polars, rensa) can hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=spawn) as pool:
        futures = [pool.submit(task.run) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
                yield
        except BrokenProcessPool as error:
            raise RunFailed(
                "Deduplication: a worker process died, perhaps for want of memory. Run again with "
                "fewer workers; what has ended is kept."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
