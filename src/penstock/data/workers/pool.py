"""Stages of work, their files, and the processes that do them.

A stage is a list of tasks; a task is a file and the pure function that computes its columns from
other files. A task whose file is there has ended and is not done again, so a killed run goes on
where it stopped, and the number of workers changes nothing but the time. A task may write other
files too, before its own: done again they come out the same. An engine that spreads tasks over
machines with a shared folder would replace `Crew` and nothing else.
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
_WAITING = 4  # tasks handed out ahead, for each worker: what waits costs memory


@dataclass(frozen=True)
class Task:
    path: Path
    compute: Callable[..., Columns]  # picklable: at the top of a module
    args: tuple[object, ...]
    bytes: int = 0  # of input, for the progress

    def run(self) -> None:
        write_columns(self.path, self.compute(*self.args))


class Crew:
    """Worker processes that serve one stage after another. Use as a context."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise PenstockError(f"The number of workers is {workers}; give at least 1.")
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind and self._pool:  # what they do now is lost: no reason to wait for them
            for process in list(self._pool._processes.values()):
                process.kill()
        self.close()

    def close(self) -> None:
        """Ends the processes; a later stage starts them again."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def each(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Does the tasks and gives each one when it has ended, in any order."""
        if self.workers == 1 or len(tasks) < 2:
            for task in tasks:
                task.run()
                yield task
            return
        pool = self._started()
        left = iter(tasks)
        busy: dict[Future[None], Task] = {}
        try:
            while True:
                for task in left:
                    with _unheard():
                        future = pool.submit(task.run)
                    busy[future] = task
                    if len(busy) >= _WAITING * self.workers:
                        break
                if not busy:
                    return
                ended, _ = wait(busy, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                    yield busy.pop(future)
        except BrokenProcessPool as error:
            raise RunFailed(
                "A worker process died, perhaps for want of memory. Run again with fewer workers; "
                "what has ended is kept."
            ) from error
        finally:
            for future in busy:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Spawned: a fork of a process with threads (polars, rensa) can hang.
            self._pool = ProcessPoolExecutor(
                self.workers,
                multiprocessing.get_context("spawn"),
                initializer=die_with,
                initargs=(os.getpid(),),
            )
        return self._pool


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that are started here never hear a Ctrl-C, which is the parent's to handle; the
    parent hears it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_stage(
    name: str, tasks: Sequence[Task], workers: int | Crew, progress: Progress | None = None
) -> None:
    """Ends when every task's file is there."""
    if not isinstance(workers, Crew):
        with Crew(workers) as crew:
            run_stage(name, tasks, crew, progress)
        return
    left = [task for task in tasks if not task.path.exists()]
    done = len(tasks) - len(left)
    tell = progress or (lambda what, done, total: None)
    tell(name, done, len(tasks))
    for _ in workers.each(left):
        done += 1
        tell(name, done, len(tasks))


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
