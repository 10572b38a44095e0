"""Runner of stages: runs their tasks, reports to the watcher, and measures times."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.data.build.parts import read_result
from penstock.data.build.progress import BuildWatcher
from penstock.data.build.tally import DocumentTally
from penstock.data.format.types import Progress
from penstock.data.store.object_path import map_places
from penstock.data.workers.pool import Executor, Task, missing_tasks


@dataclass
class StageTime:
    """Wall time and tasks of one stage."""

    seconds: float = 0.0
    tasks: int = 0
    tasks_before: int = 0  # done by an earlier attempt


@dataclass
class StageRunner:
    """The executor and the watcher of a build, with the times of its stages."""

    pool: Executor
    watcher: BuildWatcher
    clocks: dict[str, StageTime] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[StageTime]:
        clock = self.clocks.setdefault(name, StageTime())
        start = time.monotonic()
        try:
            yield clock
        finally:
            clock.seconds += time.monotonic() - start

    def run(self, name: str, tasks: Sequence[Task], documents: int | None) -> None:
        """Run the tasks whose files do not exist yet; return when all files exist."""
        with self.timed(name) as clock:
            left = missing_tasks(tasks)
            clock.tasks, clock.tasks_before = len(tasks), len(tasks) - len(left)
            if len(left) < len(tasks):
                documents = None
                self.watcher.note(
                    f"{name}: {len(tasks) - len(left)} of {len(tasks)} tasks were done before"
                )
            self.watcher.stage(name, sum(task.bytes for task in left), documents)
            for task, done in self.pool.as_completed(left):
                self.watcher.did(done, task.bytes)

    def progress(self, name: str, total_bytes: int, documents: int) -> Progress:
        """Return a `Progress` for work whose steps each pass over all documents."""
        told, seen = "", 0  # the current step, and its progress at the last call

        def tell(step: str, done: int, total: int) -> None:
            nonlocal told, seen
            if step != told or done < seen:  # a step can repeat, for another kind of copies
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


def total_tally(paths: Sequence[Path]) -> DocumentTally:
    """Return the sum of what the tasks of a stage counted."""
    total = DocumentTally()
    for result in map_places(read_result, paths, paths[0] if paths else None):
        total.add(DocumentTally.from_json(result))
    return total
