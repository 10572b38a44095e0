"""`penstock evaluate`: models and checkpoints, one after the other, on the same tasks.

The scores of a run are kept in its folder, in `evaluations/`, where the report finds them.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.catalog.open.folder import CONFIG
from penstock.errors import PenstockError, RunFailed
from penstock.files import write_whole
from penstock.ledger.scores import TaskScores
from penstock.meter.clock import now
from penstock.model.adapter.export import CONFIG as ADAPTER_CONFIG
from penstock.model.user_module import NoLogits
from penstock.run.folder import RunFolder, find_run
from penstock.run.load import load
from penstock.train.tasks.load import load_tasks
from penstock.train.tasks.open import (
    NEWEST,
    OpenedModel,
    dtype_named,
    open_folder,
    open_run,
    refuse_absent,
)

Progress = Callable[[str, str, int, int], None]  # model, what, done, of


@dataclass(frozen=True)
class Evaluated:
    """One model with its scores."""

    model: str  # name of the run, or the folder
    checkpoint: str  # as it was asked for; empty of a folder
    results: TaskScores
    dtype: str
    seconds: float
    saved: str = ""  # the file in the run's folder
    note: str = ""
    samples: dict[str, list[dict[str, Any]]] | None = None  # every request with its answer

    @property
    def title(self) -> str:
        """Return the name of the model with its step."""
        step = self.results.step
        return self.model if step is None else f"{self.model} step {step}"

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "model": self.model,
            "checkpoint": self.checkpoint or None,
            "dtype": self.dtype,
        }
        told |= {**self.results.to_json(), "seconds": self.seconds, "saved": self.saved or None}
        told |= {"note": self.note} if self.note else {}
        return told | ({"samples": self.samples} if self.samples is not None else {})


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of an evaluation: tasks, checkpoints and limits."""

    tasks: tuple[str, ...] = ()
    tasks_dir: str | None = None
    limit: int | None = None
    batch: int | None = None
    checkpoints: tuple[str, ...] = (NEWEST,)
    dtype: str | None = None
    chat: bool = False
    samples: bool = False

    def refuse_senseless(self) -> None:
        for name, value in (("limit", self.limit), ("batch", self.batch)):
            if value is not None and value < 1:
                raise PenstockError(
                    f"--{name} {value}: nothing would be evaluated; write 1 or more, or leave it "
                    "out"
                )


def evaluate_models(
    targets: Sequence[str],
    options: EvaluateOptions,
    root: str = "runs",
    progress: Progress = lambda model, what, done, of: None,
) -> list[Evaluated]:
    """Evaluate every checkpoint that was asked for of every model."""
    options.refuse_senseless()
    found = [_find(one, root) for one in targets]
    if options.dtype:
        dtype_named(options.dtype)
    for model in found:
        if isinstance(model, RunFolder):
            for checkpoint in options.checkpoints:
                refuse_absent(model, checkpoint)
    names, folder = _tasks_of(found, options)
    tasks = load_tasks(names, folder)
    done = []
    for model in found:
        if isinstance(model, Path):
            opened = open_folder(model, options.dtype)
            done.append(_evaluate(opened, "", tasks, options, progress))
            continue
        for checkpoint in options.checkpoints:
            opened = open_run(model, checkpoint, options.dtype)
            done.append(_evaluate(opened, checkpoint, tasks, options, progress, model))
    return done


def _find(target: str, root: str) -> RunFolder | Path:
    """Return the run of that name or folder, or the folder of an open model."""
    path = Path(target).expanduser()
    is_run = (path / "run.toml").is_file()
    if path.is_dir() and not is_run:
        if (path / CONFIG).is_file() or (path / ADAPTER_CONFIG).is_file():
            return path
        if not (Path(root) / target / "run.toml").is_file():
            raise PenstockError(
                f"{target}: neither a run (no run.toml) nor a model (no {CONFIG}); name a run, or "
                "a folder that was saved for transformers"
            )
    return find_run(target, root)


def _tasks_of(
    found: Sequence[RunFolder | Path], options: EvaluateOptions
) -> tuple[tuple[str, ...], str | None]:
    """Return the tasks that were named, or those of the first run file that names some."""
    if options.tasks:
        return options.tasks, options.tasks_dir
    for one in found:
        if isinstance(one, RunFolder):
            section = load(one.run_file).evaluate
            if section.tasks:
                return section.tasks, options.tasks_dir or section.tasks_dir
    raise PenstockError(
        "--tasks: no task is named, and the run file has none in [evaluate] tasks; name some, such "
        "as --tasks hellaswag,arc_easy"
    )


def _evaluate(
    opened: OpenedModel,
    checkpoint: str,
    tasks: dict[str, Any],
    options: EvaluateOptions,
    progress: Progress,
    run: RunFolder | None = None,
) -> Evaluated:
    # Not at the top: these need the harness, whose absence has been told by now.
    from penstock.train.tasks.evaluate import evaluate_tasks
    from penstock.train.tasks.forward import OneProcess
    from penstock.train.tasks.model import PenstockLM

    name = opened.name if opened.step is None else f"{opened.name} step {opened.step}"
    text, start = opened.text, now()
    model = PenstockLM(
        OneProcess(opened.runner(options.batch)),
        text.tokenizer,
        text.context,
        text.stop_ids,
        lambda what, done, of: progress(name, what, done, of),
    )
    try:
        found = evaluate_tasks(model, tasks, options.limit, options.chat, options.samples)
    except NoLogits as error:
        raise PenstockError(
            f"{name}: its module gives a loss and no logits, so it cannot be scored ({error})"
        ) from None
    except PenstockError:
        raise
    except Exception as error:  # of the task's own code, its templates or its metrics
        raise RunFailed(
            f"{name}: the harness failed ({type(error).__name__}: {str(error)[:300]})"
        ) from error
    results = TaskScores(found.scores, opened.step, now(), options.limit, found.truncated)
    seconds = now() - start
    saved = _save(run, results, opened, seconds) if run else ""
    samples = found.samples if options.samples else None
    return Evaluated(
        opened.name, checkpoint, results, opened.dtype, seconds, saved, opened.note, samples
    )


def _save(run: RunFolder, results: TaskScores, opened: OpenedModel, seconds: float) -> str:
    """Write the scores into the run's folder; an earlier file is never replaced."""
    run.evaluations.mkdir(exist_ok=True)
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(results.t))
    number, path = 0, Path()
    while not number or path.exists():
        number += 1
        more = "" if number == 1 else f"-{number}"
        path = run.evaluations / f"step-{results.step or 0:08d}-{moment}{more}.json"
    about = {"dtype": opened.dtype, "seconds": seconds}
    write_whole(path, (json.dumps({**results.to_json(), **about}, indent=2) + "\n").encode())
    return str(path)
