"""Saving of a resolved run, with defaults, as TOML that loads back equal."""

from pathlib import Path
from typing import Any

from penstock import __version__, secret
from penstock.files import PRIVATE, READABLE, write_atomic
from penstock.run import toml
from penstock.run.schema.run import Run


def to_table(run: Run) -> dict[str, Any]:
    """Return the run as the table of a run file, with quantities as they are written there."""
    table = run.model_dump(by_alias=True, exclude_none=True)
    data = table["data"]
    del data["dataset" if run.data.mix else "mix"]  # a file may hold only one of them
    return {name: part for name, part in table.items() if part != {}}


def to_toml(run: Run) -> str:
    """Return the resolved run as TOML. Open fields stay open; a comment lists their choices."""
    chosen = ", ".join(
        f"{field} = {toml.format_value(item)}" for field, item in run.choices().items()
    )
    head = [f"# resolved by penstock {__version__}" + (f"; chosen: {chosen}" if chosen else "")]
    return "\n".join([*head, *toml.format_document(to_table(run))]) + "\n"


def save(run: Run, path: Path) -> None:
    """Write the file atomically; only its owner can read a file that holds a secret."""
    is_visible = secret.is_visible(to_table(run))
    write_atomic(path, to_toml(run), READABLE if is_visible else PRIVATE)


def visible_toml(run: Run) -> str:
    """Return the resolved run as TOML without secrets."""
    return "\n".join(toml.format_document(secret.visible_table(to_table(run)))) + "\n"
