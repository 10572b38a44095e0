"""The `penstock` command: one file per verb, listed here and imported when its verb is used.

Importing every verb takes a second, and `penstock --help` or one shell completion needs none of
them. So the list holds what the help shows: each verb's module and its one line.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from penstock import __version__, output
from penstock.errors import INTERRUPTED, PenstockError, RunFailed, system_error

WHAT_IF, MACHINE = "What if", "The machine"


class Verb(NamedTuple):
    """One verb: the module in `penstock.cli` that holds it, and how the help lists it."""

    module: str
    line: str  # the first line of the verb's own help; a test compares them
    panel: str | None = None


VERBS = {
    "init": Verb("init", "Write a short run file that works here."),
    "check": Verb(
        "check",
        "Would `penstock train` start it, does it fit, and what will it do. Starts nothing.",
    ),
    "plan": Verb(
        "plan",
        "Does it fit, how fast, how long, what does it cost, what limits it. Starts nothing.",
    ),
    "train": Verb("train", "Train a model. A run that exists goes on where it was."),
    "ls": Verb("runs", "List the runs."),
    "status": Verb("runs", "Show one line on a run."),
    "logs": Verb("runs", "Show what the ranks printed."),
    "stop": Verb("runs", "Ask a running run to save and stop."),
    "report": Verb(
        "runs", "Show where everything went: plan and actual, energy, cost, faults, what to change."
    ),
    "watch": Verb("watch", "Show runs in the browser, live; several at once are compared."),
    "generate": Verb("generate", "Generate text with the newest checkpoint of a run."),
    "evaluate": Verb(
        "evaluate", "Run benchmark tasks on checkpoints of runs, or on a folder of a model."
    ),
    "export": Verb(
        "export",
        "Write Hugging Face safetensors, config and tokenizer; of an adapter, PEFT's format.",
    ),
    "data": Verb("data", "Build, check and look at datasets."),
    "simulate": Verb(
        "simulate",
        "Simulate a run many times: failures, spares, checkpoints and cost. Starts nothing.",
        WHAT_IF,
    ),
    "compare": Verb(
        "compare",
        "Compare clusters for a run: finish, USD, energy, carbon, risk, and what flips the choice.",
        WHAT_IF,
    ),
    "rent": Verb(
        "rent",
        "Rank offers of accelerators by what a useful token costs, with the chance to be late.",
        WHAT_IF,
    ),
    "backtest": Verb(
        "backtest", "The planner against measured runs: your own, or published ones.", WHAT_IF
    ),
    "probe": Verb(
        "probe", "Measure this machine and write a cluster file of it; about a minute.", MACHINE
    ),
    "doctor": Verb(
        "doctor",
        "Examine nodes: versions, clocks, disks, data, links, accelerators, layouts; a minute.",
        MACHINE,
    ),
    "drill": Verb(
        "drill",
        "Try real faults on a small copy of the run, and judge each against the undisturbed one.",
        MACHINE,
    ),
    "catalog": Verb(
        "catalog",
        "Facts with sources: accelerators, nodes, networks, sites, prices, power, failures, "
        "models.",
        MACHINE,
    ),
    "schema": Verb(
        "schema", "Print the schema of the run file: JSON for editors, or Markdown.", MACHINE
    ),
    "checkpoint": Verb("checkpoint", "Look at, check, convert and adopt checkpoints.", MACHINE),
}


class LazyVerbs(TyperGroup):
    """The group of all verbs. It imports a verb when a command line names it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in VERBS:
            self.commands[args[0]] = load_verb(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Typer would end an interrupted one without a message, and tell of a wrong
        value without the value.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise RunFailed(INTERRUPTED) from None
        except typer.BadParameter as error:
            if told := _wrong_value(error):
                raise PenstockError(told) from None
            raise


def _wrong_value(error: typer.BadParameter) -> str:
    """Return one line with the option, its value and the fix; empty where typer found another
    mistake, such as a missing argument.
    """
    # Errors of pydantic, which checks the values for typer.
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    if not found or error.param is None:
        return ""
    why, limits = str(found[0].get("type")), found[0].get("ctx", {})
    if why.startswith("int"):
        fix = "not a whole number; write one, such as 4"
    elif why.startswith("float"):
        fix = "not a number; write one, such as 0.5"
    elif why == "greater_than_equal":
        fix = f"out of range; write {_plain(limits['ge'])} or more"
    elif why == "less_than_equal":
        fix = f"out of range; write {_plain(limits['le'])} or less"
    else:
        return ""
    option = max(error.param.opts, key=len)
    option = option if option.startswith("-") else option.upper()
    return f"{option} {found[0]['input']}: {fix}"


def _plain(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"


def load_verb(name: str) -> Any:
    """Import a verb and build its command, or its group of commands."""
    found = getattr(import_module(f"penstock.cli.{VERBS[name].module}"), name)
    holder = typer.Typer()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    return get_group(holder).commands[name]


app = typer.Typer(
    cls=LazyVerbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _listed() -> None:
    """Stand in for a verb in the help until `LazyVerbs` loads it."""


for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.line, rich_help_panel=_verb.panel)(_listed)


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
    """Run a verb. An error that the user can fix is one line, not a traceback."""
    output.guard()
    try:
        try:
            _run()
        finally:
            output.flush()
    except output.OutputFailed as failed:
        output.outlive()
        if not failed.silent:
            _print_error(f"standard output: {failed}")
        sys.exit(failed.exit_code)


def _run() -> None:
    try:
        app()
    except PenstockError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if os.environ.get("PENSTOCK_TRACEBACK"):
            raise
        _print_error(system_error(error))
        sys.exit(PenstockError.exit_code)


def _print_error(error: PenstockError | str) -> None:
    from penstock.cli import show  # rich, which a shell completion does without

    show.print_error(error)
