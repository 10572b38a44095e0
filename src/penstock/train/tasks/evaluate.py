"""An evaluation: tasks and a model in, scores out. No random number of the process is drawn."""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
from lm_eval import evaluator
from tqdm import tqdm

from penstock.errors import PenstockError
from penstock.ledger.scores import TaskScore, finite_or_none
from penstock.train.tasks.load import SEED, same_random_numbers
from penstock.train.tasks.model import PenstockLM

BOOTSTRAP = 1000  # draws for the standard error of a metric that has no formula


@dataclass(frozen=True)
class HarnessResult:
    """The scores of a model, and with `samples` every request with its answer."""

    scores: tuple[TaskScore, ...]
    truncated: int
    samples: dict[str, list[dict[str, Any]]]


def evaluate_tasks(
    model: PenstockLM,
    tasks: dict[str, Any],
    limit: int | None = None,
    chat: bool = False,
    samples: bool = False,
) -> HarnessResult:
    """Run the harness. The tasks can be used again afterwards."""
    before = model.truncated
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(seed=SEED)  # each evaluation gets the same examples
    with same_random_numbers(), no_bars():
        try:
            found = evaluator.evaluate(
                lm=model,
                task_dict=tasks,
                limit=limit,
                bootstrap_iters=BOOTSTRAP,
                log_samples=samples,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
            )
        finally:
            for task in tasks["tasks"].values():
                task._instances = None  # with their answers: the next evaluation asks anew
    if found is None:
        raise PenstockError("the harness gave no results")
    return HarnessResult(
        tuple(_scores(found)), model.truncated - before, found.get("samples", {}) if samples else {}
    )


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep the harness from printing, and from forking a process that holds a GPU."""
    begin, name = tqdm.__init__, "DISABLE_MULTIPROC"
    before = os.environ.get(name)
    os.environ[name] = "1"
    tqdm.__init__ = partialmethod(begin, disable=True)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        tqdm.__init__ = begin
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _scores(found: Mapping[str, Any]) -> Iterator[TaskScore]:
    """Yield the metrics of every task and group, in the harness's order."""
    for task, metrics in found["results"].items():
        higher = found.get("higher_is_better", {}).get(task, {})
        counts = found.get("n-samples", {}).get(task, {})
        for key, value in metrics.items():
            metric, comma, picked = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            yield TaskScore(
                task=task,
                metric=metric,
                value=finite_or_none(_plain(value)),
                stderr=finite_or_none(_plain(metrics.get(f"{metric}_stderr,{picked}"))),
                filter=picked,
                higher_is_better=higher.get(metric),
                shots=int(found.get("n-shot", {}).get(task, 0) or 0),
                documents=int(counts.get("effective", 0) or 0),
            )


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
