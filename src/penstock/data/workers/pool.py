"""Build stages, their tasks, and the pool of processes that runs them.

A stage is a list of tasks. A task is the path of a file and the pure function that computes its
columns from other files. A task whose file exists is done and is not run again. So a build that was
killed continues where it stopped, and the number of workers changes only the time. A task may write
other files before its own; they come out the same when it runs again. To spread tasks over several
machines with a shared folder, replace `WorkerPool` and nothing else.
"""

import fcntl
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.data.format.columns import Columns, write_columns
from penstock.data.format.manifest import Json
from penstock.data.format.types import Progress
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

    def run(self) -> None:
        """Compute the columns and write them to `path`."""
        write_columns(self.path, self.compute(*self.args))


class WorkerPool:
    """Worker processes that run one stage after another. Use it as a context manager."""

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

    def close(self) -> None:
        """End the processes. A later stage starts new ones."""
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Run the tasks and yield each one when it is done, in any order."""
        if self.workers == 1 or len(tasks) < 2:
            for task in tasks:
                task.run()
                yield task
            return
        executor = self._start_executor()
        waiting = iter(tasks)
        submitted: dict[Future[None], Task] = {}
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
                    future.result()
                    yield submitted.pop(future)
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


def run_stage(
    name: str, tasks: Sequence[Task], workers: int | WorkerPool, progress: Progress | None = None
) -> None:
    """Run every task whose file does not exist yet."""
    if not isinstance(workers, WorkerPool):
        with WorkerPool(workers) as pool:
            run_stage(name, tasks, pool, progress)
        return
    missing = [task for task in tasks if not task.path.exists()]
    done = len(tasks) - len(missing)
    report = progress or (lambda what, done, total: None)
    report(name, done, len(tasks))
    for _ in workers.as_completed(missing):
        done += 1
        report(name, done, len(tasks))


@contextmanager
def work_folder(folder: Path, identity: dict[str, Json]) -> Iterator[None]:
    """Lock a folder for one process and refuse it if it holds files of other work.

    `identity` says which work the folder is for; it is stored in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(
                f"{folder} is in use by another process. Wait for it, or use another folder."
            ) from None
        wanted = json.dumps(identity, sort_keys=True)
        path = folder / IDENTITY
        if path.exists() and path.read_text() != wanted:
            raise PenstockError(
                f"{folder} holds other work: {path.read_text()}; expected {wanted}. "
                "Use another folder, or delete this one."
            )
        if not path.exists():
            write_atomic(path, wanted)
            sync(folder)
        for unfinished in folder.rglob(".writing-*"):
            unfinished.unlink()
        yield
