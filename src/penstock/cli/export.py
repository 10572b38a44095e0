"""`penstock export RUN`: what was trained, as a folder that transformers and others load."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.runs import Root, RunName
from penstock.cli.show import Json, out, print_json
from penstock.run.folder import find


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
    dtype: Annotated[str, typer.Option(help="Format of the weights: bf16, fp16, fp32.")] = "bf16",
    merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: the whole model with it inside.")
    ] = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Write Hugging Face safetensors, config and tokenizer; of an adapter, PEFT's format."""
    found = find(run, root)
    from penstock.train.export import export as written

    done = written(found, folder, step, dtype, merged)
    if json:
        print_json(done.to_json())
        return
    for problem in done.passed_over:
        out.print(f"passed over: {problem}", markup=False, soft_wrap=True)
    size = f"{done.bytes / 2**30:,.2f} GiB" if done.bytes >= 2**20 else f"{done.bytes:,} bytes"
    what = f"{done.family} {done.kind} of step {done.step}, {size} in {done.dtype}"
    out.print(f"{what} → {done.folder}", markup=False, soft_wrap=True)
