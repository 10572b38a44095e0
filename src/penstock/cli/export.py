"""`penstock export RUN`: the trained model as a folder that transformers and others load."""

from pathlib import Path
from typing import Annotated

import typer

from penstock import output
from penstock.cli.runs import Root, RunName
from penstock.cli.show import Json, out, print_json, refuse_stdout
from penstock.run.folder import find_run
from penstock.style import format_bytes


def export(
    run: RunName,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where to write; `export` in the run's folder if not given, `merged` there "
            "with --merged.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Of this checkpoint; the newest that is whole if not given.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Of the checkpoint with the lowest validation loss.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Format of the weights: bf16, fp16, fp32. If not given, that of the model the "
            "run started from, else bf16; an adapter by itself fp32."
        ),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: the whole model with it inside.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Write Hugging Face safetensors, config and tokenizer; of an adapter, PEFT's format."""
    output.outlive()
    refuse_stdout(folder, "--out", "name a folder")
    found = find_run(run, root)
    from penstock.train.export.model import export as written

    done = written(found, folder, step, dtype, merged, best, force)
    if json:
        print_json(done.to_json())
        return
    for problem in done.passed_over:
        out.print(f"note: {problem}", markup=False, soft_wrap=True)
    what = (
        f"{done.family} {done.kind} of step {done.step}, {format_bytes(done.bytes)} in {done.dtype}"
    )
    out.print(f"{what} → {done.folder}", markup=False, soft_wrap=True)
