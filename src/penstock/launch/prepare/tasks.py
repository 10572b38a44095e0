"""The benchmark tasks of `[evaluate] tasks`: loaded once before any process starts.

A task that is unknown, cannot be parsed or has no data would otherwise be noticed hours later, at
its first evaluation.
"""

from penstock.errors import PenstockError
from penstock.run.schema.run import Run


def refuse_impossible_tasks(run: Run) -> None:
    """Refuse tasks that cannot be loaded, or that this run's ranks cannot take part in."""
    section = run.evaluate
    if not section.tasks:
        return
    if run.guard.mode == "live":
        raise PenstockError(
            'evaluate.tasks: with guard.mode = "live" replicas come and go, and the ranks that '
            'evaluate tasks must stay together; write mode = "restart", or run the tasks '
            "afterwards with `penstock evaluate`"
        )
    from penstock.train.tasks.load import load_tasks

    load_tasks(section.tasks, section.tasks_dir, "evaluate.tasks")
