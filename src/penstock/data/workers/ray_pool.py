"""Tasks of a build on a Ray cluster.

Ray runs each task on some node and runs it again if its worker or node dies. Files are where all
nodes see them, so nothing but paths and settings goes through Ray. The driver holds no state: one
that is started again finds what was done by the files, like any build.
"""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from blake3 import blake3

from penstock.data.format.columns import Columns
from penstock.data.workers.installed import difference, versions
from penstock.data.workers.pool import Task
from penstock.data.workers.ray_cluster import version_message
from penstock.errors import PenstockError, RunFailed

_QUEUED_PER_WORKER = 2  # tasks submitted ahead, so that no worker waits for the driver
_RETRIES = 5  # of a task whose worker or node died
_WAIT_S = 1.0  # between attempts to get the lock


class RayPool:
    """The CPUs of a cluster as the workers of a build. Use it as a context manager."""

    def __init__(self, ray: ModuleType, worker_bytes: int) -> None:
        self._ray = ray
        self._worker_bytes = worker_bytes  # memory that Ray reserves for a task
        self._peak_bytes = 0
        self._lock: Any = None
        self.workers = self._cpus()
        if self.workers < 1:
            raise PenstockError(
                "The Ray cluster has no CPUs for tasks. Start its nodes with --num-cpus, or add one"
            )

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()  # ends what this driver still runs, and gives the lock back

    @property
    def memory_bytes(self) -> int:
        return self._peak_bytes

    def close(self) -> None:
        """Do nothing: the workers belong to the cluster."""

    def lock(self, what: str, waiting: Callable[[], None]) -> None:
        """Wait until no other driver of the cluster builds `what`; others then wait for this one.

        The lock is an actor, which ends with the driver that made it, also if that is killed.
        """
        name = f"build-{blake3(what.encode()).hexdigest()[:16]}"
        actor = self._ray.remote(num_cpus=0, max_restarts=-1)(BuildLock)
        told = False
        while True:
            try:
                self._lock = actor.options(name=name).remote()
                self._ray.get(self._lock.held.remote())
                return
            except ValueError:  # the name is taken
                if not told:
                    waiting()
                    told = True
                time.sleep(_WAIT_S)

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
        """Run the tasks on any node; yield each one when it is done, with its documents."""
        ray = self._ray
        self.workers = max(1, self._cpus())  # nodes may have come or gone since the last stage
        run = ray.remote(num_cpus=1, max_retries=_RETRIES, memory=self._worker_bytes)(run_task)
        expected = ray.put(versions())
        shared = _SharedArguments(ray, tasks)
        waiting = iter(tasks)
        submitted: dict[Any, Task] = {}
        try:
            while True:
                for task in waiting:
                    args = (task.path, task.compute, task.count, *shared.of(task))
                    submitted[run.remote(expected, *args)] = task
                    if len(submitted) >= _QUEUED_PER_WORKER * self.workers:
                        break
                if not submitted:
                    return
                ray.wait(list(submitted), num_returns=1)
                done, _ = ray.wait(list(submitted), num_returns=len(submitted), timeout=0)
                for one in done:
                    documents, peak = self._result(one, submitted[one])
                    self._peak_bytes = max(self._peak_bytes, peak)
                    yield submitted.pop(one), documents
        finally:
            for one in submitted:
                ray.cancel(one)

    def _result(self, done: Any, task: Task) -> tuple[int, int]:
        from ray.exceptions import RayError, RayTaskError

        try:
            answer: tuple[int, int] = self._ray.get(done)
            return answer
        except RayTaskError as error:
            if isinstance(error.cause, PenstockError):
                raise error.cause from None
            raise
        except RayError as error:
            raise RunFailed(
                f"A task of the build failed on the Ray cluster {_RETRIES + 1} times "
                f"({task.path.parent.name}/{task.path.name}: {_first_line(error)}). Nodes may have "
                "too little memory: start them with fewer --num-cpus. The same command goes on; "
                "finished tasks are kept."
            ) from None

    def _cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))


class BuildLock:
    """An actor that exists while its driver builds a dataset."""

    def held(self) -> bool:
        return True


class _SharedArguments:
    """Arguments that all tasks of a stage have in common go to the cluster once."""

    def __init__(self, ray: ModuleType, tasks: Sequence[Task]) -> None:
        self._shared: dict[int, Any] = {}
        if len(tasks) > 1:
            for place, (one, other) in enumerate(zip(tasks[0].args, tasks[1].args, strict=False)):
                if one is other and not isinstance(one, int | float | bool | None):
                    self._shared[place] = one, ray.put(one)

    def of(self, task: Task) -> list[object]:
        out = list(task.args)
        for place, (value, reference) in self._shared.items():
            if out[place] is value:
                out[place] = reference
        return out


def run_task(
    expected: dict[str, str],
    path: Path,
    compute: Callable[..., Columns],
    count: Callable[[Columns], int] | None,
    *args: object,
) -> tuple[int, int]:
    """Run a task in a process of the cluster; return its documents and the process's peak memory.

    A node that joined after the build began may have other versions, so each process looks.
    """
    if told := difference(expected, versions()):
        raise PenstockError(version_message(_this_node(), told))
    documents = Task(path, compute, args, count=count).run()
    return documents, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _this_node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
