"""`penstock init`: writes a short run file that works here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.run.init import ENOUGH, InitLengths, choose_lengths, template, write_run_file


def init(
    kind: Annotated[str, typer.Argument(help="pretrain, finetune or preference.")] = "pretrain",
    out: Annotated[Path, typer.Option("--out", help="The file to write; - prints it.")] = Path(
        "run.toml"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="For finetune and preference: a model's folder, or hf:org/name."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="For finetune and preference: your examples, a JSONL file."),
    ] = None,
    json: show.Json = False,
) -> None:
    """Write a short run file that works here."""
    if show.is_stdout(out, "--out", json):
        sys.stdout.write(template(kind, model, data, _lengths(model, data)))
        return
    left = write_run_file(kind, out, force, model, data, _lengths(model, data))
    # The user's own model and rows can be checked without training.
    following = f"penstock {'train' if kind == 'pretrain' else 'check'} {out}"
    hint = _hint(kind, data)
    if json:
        told = {"file": str(out), "kind": kind, **({"fill_in": left} if left else {})}
        show.print_json({**told, **({"note": hint} if hint else {}), "next": following})
        return
    fill_in = f" Fill in {' and '.join(left)}." if left else ""
    show.out.print(f"Wrote {out}.{fill_in} Next: {following}", markup=False, soft_wrap=True)
    if hint:
        show.out.print(f"Note: {hint}", markup=False, soft_wrap=True)


def _hint(kind: str, data: str | None) -> str:
    """Say when the rows are for another kind of run."""
    if kind == "pretrain" or data is None:
        return ""
    from penstock.data.sources.guess import PAIR, guess_fields

    pairs = guess_fields(data) == PAIR
    if pairs and kind == "finetune":
        return f"{data} holds chosen and rejected answers, which `penstock init preference` is for"
    return ""


def _lengths(model: str | None, data: str | None) -> InitLengths | None:
    """Choose a batch and a sequence that the examples fill; None without a model and examples."""
    if model is None and data is None:
        return None
    from penstock.data.build.estimate import estimate_tokens

    found = estimate_tokens(data, ENOUGH) if data else None
    if found is None:
        return choose_lengths(model)
    return choose_lengths(model, found.tokens, found.longest, found.packed)
