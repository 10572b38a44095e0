"""The `penstock` command: one file per verb, gathered here."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import show
from penstock.cli.backtest import backtest
from penstock.cli.catalog import catalog
from penstock.cli.check import check
from penstock.cli.checkpoint import checkpoint
from penstock.cli.data import data
from penstock.cli.drill import drill
from penstock.cli.export import export
from penstock.cli.generate import generate
from penstock.cli.init import init
from penstock.cli.plan import plan
from penstock.cli.probe import probe
from penstock.cli.runs import logs, ls, report, status, stop
from penstock.cli.schema import schema
from penstock.cli.train import train
from penstock.cli.watch import watch
from penstock.errors import NotYet, PenstockError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EVERYDAY: list[Callable[..., None]] = [
    init, check, plan, train, ls, status, logs, stop, report, watch, generate, export
]  # fmt: skip
# In the design and not built yet: said plainly, rather than "no such command".
NOT_YET = (
    "compare", "simulate", "rent",
    "doctor",
)  # fmt: skip
WHAT_IF: list[Callable[..., None]] = [backtest]
MACHINE: list[Callable[..., None]] = [probe, drill, catalog, schema]
for verb in EVERYDAY:
    app.command()(verb)
app.add_typer(data, name="data")
for verb in WHAT_IF:
    app.command(rich_help_panel="What if")(verb)
for verb in MACHINE:
    app.command(rich_help_panel="The machine")(verb)
app.add_typer(checkpoint, name="checkpoint", rich_help_panel="The machine")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One run file in; a trained model and a ledger of every accelerator-second out."""


def main() -> None:
    try:
        if sys.argv[1:2] and sys.argv[1] in NOT_YET:
            raise NotYet(
                f"`penstock {sys.argv[1]}` is not built yet; `penstock --help` lists what is"
            )
        app()
    except PenstockError as error:
        show.print_error(error)
        sys.exit(error.exit_code)
