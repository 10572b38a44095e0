"""Runs a stage's tasks, tells the watcher, and keeps how long each stage took."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.data.build.parts import read_result
from penstock.data.build.progress import Watcher
from penstock.data.build.tally import Tally
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool


@dataclass
class Clocked:
    seconds: float = 0.0
    tasks: int = 0
    tasks_before: int = 0  # done by an earlier attempt


@dataclass
class Stages:
    pool: WorkerPool
    watcher: Watcher
    clocks: dict[str, Clocked] = field(default_factory=dict)

    @contextmanager
    def clocked(self, name: str) -> Iterator[Clocked]:
        clock = self.clocks.setdefault(name, Clocked())
        start = time.monotonic()
        try:
            yield clock
        finally:
            clock.seconds += time.monotonic() - start

    def run(
        self,
        name: str,
        tasks: Sequence[Task],
        documents: int | None,
        documents_of: Callable[[Path], int],
    ) -> None:
        """Ends when every task's file is there."""
        with self.clocked(name) as clock:
            left = [task for task in tasks if not task.path.exists()]
            clock.tasks, clock.tasks_before = len(tasks), len(tasks) - len(left)
            if len(left) < len(tasks):
                documents = None
                self.watcher.note(
                    f"{name}: {len(tasks) - len(left)} of {len(tasks)} tasks were done before"
                )
            self.watcher.stage(name, sum(task.bytes for task in left), documents)
            for task in self.pool.as_completed(left):
                self.watcher.did(documents_of(task.path), task.bytes)

    def progress(self, name: str, total_bytes: int, documents: int) -> Progress:
        """For work that tells done and total: each of its steps is a pass over all documents."""
        told, seen = "", 0  # the step that is under way, and how far it was

        def tell(step: str, done: int, total: int) -> None:
            nonlocal told, seen
            if step != told or done < seen:  # a step can come again, for another kind of copies
                told, seen = step, done
                part = (total - done) / total if total else 0
                self.watcher.stage(
                    f"{name}: {step}", int(total_bytes * part), int(documents * part)
                )
            if done > seen:
                before, seen = seen, done
                self.watcher.did(
                    documents * done // total - documents * before // total,
                    total_bytes * done // total - total_bytes * before // total,
                )

        return tell


def tally_of(paths: Sequence[Path]) -> Tally:
    """What the tasks of a stage counted, together."""
    total = Tally()
    for path in paths:
        total.add(Tally.from_json(read_result(path)))
    return total
