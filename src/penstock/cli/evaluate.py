"""`penstock evaluate RUN|FOLDER`: benchmark tasks of lm-evaluation-harness on trained models."""

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import output
from penstock.cli.runs import Root
from penstock.cli.show import Json, out, print_json, print_table, refuse_stdout, refuse_unwritable
from penstock.errors import PenstockError
from penstock.style import format_duration

if TYPE_CHECKING:
    from penstock.train.tasks.several import Evaluated


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FOLDER...",
            help="Name or folder of a run, or a folder of Hugging Face safetensors; several are "
            "compared.",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks, groups or tags of the harness, with commas between them; those of "
            "[evaluate] tasks in the run file if not given."
        ),
    ] = "",
    tasks_dir: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Tasks of your own, in the harness's YAML format."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Documents of each task; all if not given.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Most sequences in a forward pass; by their length if not given."),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Of a run: a step, newest or best; several with commas between them are compared."
        ),
    ] = "newest",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Number format to compute in: bf16, fp16, fp32. If not given, that of a run's "
            "checkpoint or of a folder's config."
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask through the model's chat template.")
    ] = False,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write every request with its answer, as JSON."),
    ] = None,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Run benchmark tasks on checkpoints of runs, or on a folder of a model."""
    output.outlive()
    refuse_stdout(samples, "--samples", "name a file")
    if samples is not None:
        refuse_unwritable(samples, "--samples")  # not after hours of tasks
    from penstock.train.tasks.several import EvaluateOptions, evaluate_models

    options = EvaluateOptions(
        tasks=_listed(tasks),
        tasks_dir=tasks_dir,
        limit=limit,
        batch=batch,
        checkpoints=_listed(checkpoint) or ("newest",),
        dtype=dtype,
        chat=chat,
        samples=samples is not None,
    )
    progress = _Progress(sys.stderr.isatty())
    try:
        done = evaluate_models(models, options, root, progress)
    finally:
        progress.close()
    for one in done:
        if one.note:
            sys.stderr.write(f"note: {one.note}\n")
    if samples is not None:
        _write_samples(samples, done)
    _print(done, json)


def _write_samples(path: Path, done: Sequence["Evaluated"]) -> None:
    every = [{"model": one.title, "samples": one.samples} for one in done]
    try:
        path.write_text(json_module.dumps(every, default=str) + "\n")
    except OSError as error:
        raise PenstockError(f"--samples {path}: {error.strerror}") from None


def _print(done: Sequence["Evaluated"], json: bool) -> None:
    if json:
        print_json([{k: v for k, v in one.to_json().items() if k != "samples"} for one in done])
    else:
        _print_scores(done)


def _print_scores(done: Sequence["Evaluated"]) -> None:
    from penstock.watch.report.scores import scores_table

    limits = ["" if one.results.limit is None else f", first {one.results.limit}" for one in done]
    columns = [(f"{one.title}{part}", one.results) for one, part in zip(done, limits, strict=True)]
    print_table(scores_table(columns))
    for one in done:
        cut = one.results.truncated
        if cut:
            out.print(
                f"{one.title}: {cut} requests were longer than the model's context and lost their "
                "beginning",
                markup=False,
            )
        where = f" → {one.saved}" if one.saved else ""
        out.print(
            f"{one.title}: {one.dtype}, {format_duration(one.seconds)}{where}",
            markup=False,
            soft_wrap=True,
        )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class _Progress:
    """One line on standard error that is written over; on no terminal, nothing."""

    def __init__(self, shown: bool) -> None:
        self.shown, self._width = shown, 0

    def __call__(self, model: str, what: str, done: int, of: int) -> None:
        if self.shown:
            line = f"{model}: {done:,} of {of:,} requests {what}"
            sys.stderr.write(f"\r{line:<{self._width}}")
            sys.stderr.flush()
            self._width = len(line)

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
