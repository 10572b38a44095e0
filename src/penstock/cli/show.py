"""Output of the verbs: the console, JSON for programs, tables, pages and errors."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.measure import Measurement
from rich.table import Table

from penstock.errors import PenstockError
from penstock.secret import redact_all
from penstock.watch.style.console import RedactedConsole

out = RedactedConsole(highlight=False)
err = RedactedConsole(stderr=True, highlight=False)

STDOUT = Path("-")
WIDEST = 10_000  # characters: wider than any table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


def print_json(value: Any, documents: bool = False) -> None:
    """Print as people read it where the terminal can show it, else in plain ASCII.

    Secrets are hidden, unless the value holds `documents`: their text is shown as it is.
    """
    value = value if documents else redact_all(value)
    said = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        said.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # asked first: a guarded stream would write `?`
        said = json.dumps(value, indent=2, allow_nan=False)
    sys.stdout.write(f"{said}\n")


def print_table(table: Table) -> None:
    """Print a table in full: no cell is wrapped or cut, however narrow the terminal is.

    A name that is broken cannot be typed or searched for. Without a terminal, as in a pipe, there
    is no width to keep to.
    """
    needed = Measurement.get(out, out.options.update(width=WIDEST), table).maximum
    RedactedConsole(highlight=False, width=needed).print(table)


def is_stdout(path: Path | None, option: str, json: bool) -> bool:
    """Return whether an option for an output file means standard output: `-`, as elsewhere.

    Refuse it beside --json, which is printed there too.
    """
    if path != STDOUT:
        return False
    if json:
        raise PenstockError(
            f"{option} - and --json: both write to standard output; name a file with {option}"
        )
    return True


def refuse_stdout(path: Path | None, option: str, instead: str) -> None:
    """Refuse `-` where a folder is written, or a file that is read again."""
    if path == STDOUT:
        raise PenstockError(f"{option} -: standard output cannot hold it; {instead}")


def write_page(path: Path, text: str, option: str = "--html") -> None:
    """Write a page or a picture to the file that an option names, or to standard output."""
    if path == STDOUT:
        # Characters that the encoding lacks are written as XML references: the text stays the same.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "xmlcharrefreplace").decode(encoding))
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PenstockError(
            f"{path}: cannot be written: {error.strerror}; name another file with {option}"
        ) from None


def refuse_unwritable(path: Path, option: str) -> None:
    """Refuse a file that will not be written, before the work whose result it is to hold."""
    there = path.exists()
    why = ""
    if path.is_dir():
        why = os.strerror(errno.EISDIR)
    elif not there and not path.parent.is_dir():
        why = os.strerror(errno.ENOENT)
    elif not os.access(path if there else path.parent, os.W_OK):
        why = os.strerror(errno.EACCES)
    if why:
        raise PenstockError(f"{path}: cannot be written: {why}; name another file with {option}")


def print_error(error: PenstockError | str) -> None:
    # Not through rich: a message may hold brackets and paths that must come out as they are.
    sys.stderr.write(f"error: {error}\n")
