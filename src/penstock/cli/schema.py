"""`penstock schema`: the reference of the run file, for editors and for people."""

import sys
from typing import Annotated

import typer

from penstock.cli import show
from penstock.run import reference


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference for people.")] = False,
) -> None:
    """Print the schema of the run file: JSON for editors, or Markdown."""
    if markdown:
        sys.stdout.write(reference.markdown())
    else:
        show.print_json(reference.json_schema())
