"""Loading and saving of cluster files; all mistakes are reported at once, with their lines."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.errors import PenstockError, nearest
from penstock.files import write_atomic
from penstock.run import toml
from penstock.run.clusters.file import ClusterFile
from penstock.run.fields import Schema
from penstock.run.load import syntax
from penstock.run.mistakes import Mistake, describe_error, describe_errors, dotted
from penstock.run.toml_lines import KeyLines

MAX_BYTES = 2**22  # readings of a probe take some ten thousand bytes
MAX_KEYS = 100_000
UNMEASURED = "unmeasured"
_EXAMPLE = '[accelerator] with name = "H100", and nodes = 4 above it'
CLUSTER = Schema(
    ClusterFile,
    noun="cluster file",
    start=f"write {_EXAMPLE}",
    absent=f"`penstock probe --out {{path}}` writes one, or write {_EXAMPLE}",
    override="nodes=4",
    reference="python -m penstock.run.clusters.reference",
    missing={},
)


def load_cluster(path: str | Path, unmeasured: bool = False) -> ClusterFile:
    """Load and check a cluster file; `unmeasured` is one that may not name its accelerator yet."""
    path = Path(path)
    text = _text(path)
    try:
        table = toml.parse(text, MAX_KEYS)
    except toml.TooLarge as error:
        raise PenstockError(f"{path}: {error}; that is too much for a cluster file") from None
    except ValueError as error:
        raise PenstockError(f"{path}{syntax(str(error), text)}") from None
    if not table:
        raise PenstockError(f"{path}: the file is empty; {CLUSTER.start}")
    if unmeasured and not ("accelerator" in table or "node" in table):
        table["accelerator"] = {"name": UNMEASURED}
    try:
        return ClusterFile.model_validate({"name": path.stem, **table})
    except ValidationError as error:
        found = describe_errors(error, lambda detail: _words(detail, table))
    lines = KeyLines(text)
    placed = sorted((lines.of(mistake.path) or 0, mistake.text) for mistake in found)
    raise PenstockError(
        "\n".join(f"{path}{f':{line}' if line else ''}: {what}" for line, what in placed)
    )


def save_cluster(file: ClusterFile, path: Path, head: str = "") -> None:
    """Write the file atomically."""
    lines = [*([f"# {head}"] if head else []), *toml.format_document(to_table(file))]
    with _writable(path):
        write_atomic(path, "\n".join(lines) + "\n")


def refuse_unwritable(path: Path) -> None:
    """Refuse a path that cannot be written, before a probe takes a minute."""
    with _writable(path), tempfile.TemporaryFile(dir=path.parent):
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise PenstockError(
            f"{path}: cannot be written: {error.strerror}; name another file with --out"
        ) from error


def keep_stated_fields(file: ClusterFile, path: Path) -> ClusterFile:
    """Return a new probe with site, price and failures of the old file: no probe measures them."""
    if not path.is_file():
        return file
    try:
        before = load_cluster(path)
    except PenstockError:  # damaged, or of another version: the new probe replaces it
        return file
    kept = {name: getattr(before, name) for name in ("site", "price", "failures")}
    return file.model_copy(update=kept)


def to_table(file: ClusterFile) -> dict[str, Any]:
    """Return the file as a table without default values."""
    return _without_blanks(file.model_dump(exclude_none=True, exclude_defaults=True))


def _without_blanks(table: dict[str, Any]) -> dict[str, Any]:
    inner = {
        name: _without_blanks(part) if isinstance(part, dict) else part
        for name, part in table.items()
    }
    return {name: part for name, part in inner.items() if part not in ({}, ())}


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "no such file"
            raise PenstockError(
                f"{path}: {what}, not a cluster file; {CLUSTER.absent.format(path=path)}"
            )
        if path.stat().st_size > MAX_BYTES:
            raise PenstockError(f"{path}: over 4 MiB, not a cluster file; name a TOML file")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PenstockError(f"{path}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise PenstockError(
            f"{path}: cannot be read: {error.strerror}; check the path and its rights"
        ) from None


def _words(detail: Any, table: dict[str, Any]) -> list[Mistake]:
    """Return the mistakes of one error; most of them read as those of a run file."""
    path = tuple(detail["loc"])
    plain = tuple(part for part in path if isinstance(part, str))
    field = CLUSTER.by_path.get(plain)
    if detail["type"] == "extra_forbidden":
        return [Mistake(path, f"{dotted(path)}: no such field. {_suggest(plain)}")]
    if detail["type"] == "literal_error" and field:
        guess = nearest(str(detail["input"]), field.choices)
        what = f"not a choice; write {field.kind['title']}. {guess}".rstrip(" .")
        return [Mistake(path, f"{dotted(path)} = {toml.format_value(detail['input'])}: {what}")]
    if detail["type"] == "tuple_type":
        return [
            Mistake(path, f"{dotted(path)}: not a list; write each under its own [[{plain[-1]}]]")
        ]
    return describe_error(detail, table, CLUSTER)


def _suggest(path: tuple[str, ...]) -> str:
    section, name = path[:-1], path[-1]
    if homes := [known[:-1] for known in CLUSTER.by_path if known[-1] == name]:
        places = (f"in [{'.'.join(home)}]" if home else "at the top of the file" for home in homes)
        return f"'{name}' belongs {' or '.join(dict.fromkeys(places))}"
    here = [known[-1] for known in CLUSTER.by_path if known[:-1] == section]
    return nearest(name, here) or f"There are {', '.join(here)}"
