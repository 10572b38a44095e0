"""`penstock init`: writes a short run file that works here."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.run.init import write


def init(
    kind: Annotated[str, typer.Argument(help="pretrain or finetune.")] = "pretrain",
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("run.toml"),
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Write a short run file that works here."""
    write(kind, out, force)
    if json:
        show.print_json({"file": str(out), "kind": kind, "next": f"penstock train {out}"})
    else:
        show.out.print(f"Wrote {out}. Next: penstock train {out}", markup=False, soft_wrap=True)
