"""Build stages, their tasks, and the pool of processes that runs them.

A stage is a list of tasks. A task is the path of a file and the pure function that computes its
columns from other files. A task whose file exists is done and is not run again. So a build that was
killed continues where it stopped, and the number of workers changes only the time. A task may write
other files before its own; they come out the same when it runs again. An `Executor` runs tasks:
`WorkerPool` in processes of this machine, `RayPool` on a cluster.
"""

import fcntl
import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.data.format.columns import Columns, write_columns
from penstock.data.format.manifest import Json
from penstock.data.format.types import Progress
from penstock.data.store.object_path import ObjectPath, existing, location
from penstock.errors import PenstockError, RunFailed
from penstock.files import sync, write_atomic
from penstock.meter.orphan import die_with

IDENTITY = "identity.json"
_QUEUED_PER_WORKER = 4  # tasks submitted ahead; each one waiting costs memory


@dataclass(frozen=True)
class Task:
    """One file and the function that computes its columns."""

    path: Path
    compute: Callable[..., Columns]  # a function at the top of a module, so that it can be pickled
    args: tuple[object, ...]
    bytes: int = 0  # size of the input, for progress
    count: Callable[[Columns], int] | None = None  # documents in the result, for progress

    def run(self) -> int:
        """Compute the columns and write them to `path`; return the number of documents."""
        columns = self.compute(*self.args)
        write_columns(self.path, columns)
        return self.count(columns) if self.count else 0


class Executor(Protocol):
    """A pool that runs the tasks of a build."""

    workers: int

    @property
    def memory_bytes(self) -> int:
        """Return the peak memory of a worker, as far as it is known."""

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
        """Run the tasks; yield each one when it is done, in any order, with its documents."""

    def close(self) -> None:
        """End the workers. A later stage starts new ones."""


class WorkerPool:
    """Processes of this machine that run one stage after another. Use it as a context manager."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise PenstockError(f"The number of workers is {workers}; give at least 1.")
        self.workers = workers
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind and self._executor:  # their current work is lost anyway: do not wait for it
            for process in list(self._executor._processes.values()):
                process.kill()
        self.close()

    @property
    def memory_bytes(self) -> int:
        """Return the peak memory of this process or of a worker that has ended."""
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024

    def close(self) -> None:
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
        if self.workers == 1 or len(tasks) < 2:
            for task in tasks:
                yield task, task.run()
            return
        executor = self._start_executor()
        waiting = iter(tasks)
        submitted: dict[Future[int], Task] = {}
        try:
            while True:
                for task in waiting:
                    with _sigint_blocked():
                        future = executor.submit(task.run)
                    submitted[future] = task
                    if len(submitted) >= _QUEUED_PER_WORKER * self.workers:
                        break
                if not submitted:
                    return
                done, _ = wait(submitted, return_when=FIRST_COMPLETED)
                for future in done:
                    documents = future.result()
                    yield submitted.pop(future), documents
        except BrokenProcessPool as error:
            raise RunFailed(
                "A worker process died, perhaps because memory ran out. Run again with fewer "
                "workers; finished tasks are kept."
            ) from error
        finally:
            for future in submitted:
                future.cancel()

    def _start_executor(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # Spawn, not fork: a fork of a process with threads (polars, rensa) can hang.
            self._executor = ProcessPoolExecutor(
                self.workers,
                multiprocessing.get_context("spawn"),
                initializer=die_with,
                initargs=(os.getpid(),),
            )
        return self._executor


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT while processes start, so that they inherit the mask and ignore Ctrl-C.

    Only the parent handles Ctrl-C; it receives a pending one when the mask is restored.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def missing_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks whose files do not exist yet."""
    there = existing([task.path for task in tasks])
    return [task for task in tasks if task.path not in there]


def run_stage(
    name: str, tasks: Sequence[Task], workers: int | Executor, progress: Progress | None = None
) -> None:
    """Run every task whose file does not exist yet."""
    if isinstance(workers, int):
        with WorkerPool(workers) as pool:
            run_stage(name, tasks, pool, progress)
        return
    missing = missing_tasks(tasks)
    done = len(tasks) - len(missing)
    report = progress or (lambda what, done, total: None)
    report(name, done, len(tasks))
    for _ in workers.as_completed(missing):
        done += 1
        report(name, done, len(tasks))


@contextmanager
def work_folder(folder: Path, identity: dict[str, Json]) -> Iterator[None]:
    """Lock a folder for one process and refuse it if it holds files of other work.

    `identity` says which work the folder is for; it is stored in the folder. In an object store
    nothing is locked here: `RayPool` lets only one process build a dataset.
    """
    if isinstance(folder, ObjectPath):
        _claim(folder, identity)
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(
                f"{folder} is in use by another process. Wait for it, or use another folder."
            ) from None
        _claim(folder, identity)
        for unfinished in folder.rglob(".writing-*"):
            unfinished.unlink()
        yield


def _claim(folder: Path, identity: dict[str, Json]) -> None:
    wanted = json.dumps(identity, sort_keys=True)
    path = folder / IDENTITY
    found = path.read_text() if path.exists() else None
    if found not in (None, wanted):
        raise PenstockError(
            f"{location(folder)} holds other work: {found}; expected {wanted}. "
            "Use another folder, or delete this one."
        )
    if found is None and isinstance(path, ObjectPath):
        path.write_bytes(wanted.encode())
    elif found is None:
        write_atomic(path, wanted)
        sync(folder)
