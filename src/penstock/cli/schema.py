"""`penstock schema`: the reference of the run file and of recipes, for editors and for people."""

import sys
from typing import Annotated

import typer

from penstock.cli import show
from penstock.run import reference


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference for people.")] = False,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Of recipes for datasets, not of the run file.")
    ] = False,
) -> None:
    """Print the schema of the run file: JSON for editors, or Markdown."""
    if recipe:
        from penstock.data.recipe import (
            reference as recipe_reference,
        )  # numpy and more, which the run file spares

        made, text = recipe_reference.json_schema, recipe_reference.markdown
    else:
        made, text = reference.json_schema, reference.markdown
    if markdown:
        sys.stdout.write(text())
    else:
        show.print_json(made())
