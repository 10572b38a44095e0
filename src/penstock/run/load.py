"""Loading of a TOML file or a table, with overrides; all mistakes are reported at once."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.catalog.open.folder import model_folder
from penstock.errors import PenstockError
from penstock.run import toml
from penstock.run.fields import RUN, S, Schema
from penstock.run.mistakes import Mistake, find_mistakes
from penstock.run.override import (
    Override,
    OverrideInput,
    apply_overrides,
    parse_overrides,
    to_toml_value,
)
from penstock.run.paths import PLAN, locate_paths
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.run.toml_lines import KeyLines
from penstock.secret import visible_line

_LARGEST_BYTES = 2**20
_RUN_FILE = "run.toml"  # in the folder of a run
_LONGEST_LINE = 200  # characters of a line that are checked for a missing quote
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_UNQUOTED = re.compile(r"""\s*([\w.-]+)\s*=\s*([^\s"'\[{#][^"'#]*?)\s*(?:#.*)?""")


Prepare = Callable[[dict[str, Any], Path], None]


def load(path: str | Path, overrides: Sequence[OverrideInput] = ()) -> Run:
    """Read a run file. `overrides` are "train.tokens=2B" or tables; they beat the file.

    A run that exists may also be given by its folder or by its name under `runs/`.
    """
    path = Path(path)
    if (folder := _folder_of_run(path)) is None:
        return load_as(RUN, path, overrides, locate_paths)
    file = folder / _RUN_FILE
    if load_as(RUN, file).folder.resolve() != folder.resolve():  # moved, or seen from elsewhere
        overrides = [{"name": folder.name, "dir": str(folder.parent)}, *overrides]
    return load_as(RUN, file, overrides, locate_paths)


def _folder_of_run(path: Path) -> Path | None:
    """Return the folder of a run that was started; None for any other path."""
    if os.path.isfile(path):
        return None
    for folder in (path, Path("runs", path)):
        if os.path.isfile(folder / PLAN) and os.path.isfile(folder / _RUN_FILE):
            return folder
    return None


def load_table(table: Mapping[str, Any], overrides: Sequence[OverrideInput] = ()) -> Run:
    """Make a run from a table with the names of a run file, nested or dotted; no file is read."""
    return check_table(RUN, {}, [to_toml_value(table), *overrides], Path("run"))


def load_as(
    schema: Schema[S],
    path: Path,
    overrides: Sequence[OverrideInput] = (),
    prepare: Prepare | None = None,
) -> S:
    """Load a file by its schema; `name` defaults to the name of the file."""
    text = _read_text(path, schema)
    table = _parse(text, path, schema)
    if not table and not overrides:
        raise PenstockError(f"{path}: the file is empty; {schema.start}")
    _refuse_other_kind(table, path, schema)
    table.setdefault("name", _name_from(path))
    return check_table(schema, table, overrides, path, text, prepare)


def with_model_config(run: Run) -> Run:
    """Fetch the config of the run's hub model if it is not here, and check the run against it.

    Only with the config can all of the run be checked.
    """
    model = run.model.from_
    if not model or run.model.base() is not None:
        return run
    model_folder(model)
    try:
        return Run.model_validate(to_table(run))
    except ValidationError as error:
        messages = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors()]
        raise PenstockError(f'model.from = "{model}": {"; ".join(messages)}') from None


def _refuse_other_kind(table: dict[str, Any], path: Path, schema: Schema[S]) -> None:
    """Refuse a recipe if a run file is expected, and the other way round."""
    recipe = "source" in table and "model" not in table
    run = "model" in table and "source" not in table
    if recipe and schema is RUN:
        what, verb = "a recipe for a dataset", "data build"
    elif run and schema.noun == "recipe":
        what, verb = "a run file", "train"
    else:
        return
    raise PenstockError(f"{path}: {what}, not a {schema.noun}; give it to `penstock {verb} {path}`")


def check_table(
    schema: Schema[S],
    table: dict[str, Any],
    overrides: Sequence[OverrideInput],
    path: Path,
    text: str = "",
    prepare: Prepare | None = None,
) -> S:
    """Apply the overrides and check the result.

    `path` and `text` are the file that the table stands in, for messages and line numbers.
    `prepare` may change the table, overrides included, before it is checked.
    """
    changes, problems = parse_overrides(overrides, schema)
    problems += apply_overrides(changes, table, schema)
    if prepare:
        prepare(table, path)
    try:
        loaded = schema.root.model_validate(table)
    except ValidationError as error:
        problems = (
            _placed(find_mistakes(error, table, schema), str(path), KeyLines(text), changes)
            + problems
        )
    if problems:
        raise PenstockError("\n".join(problems))
    return loaded


def _read_text(path: Path, schema: Schema[S]) -> str:
    try:
        if path.is_dir():
            raise PenstockError(f"{path}: a folder, not a {schema.noun}; name the file in it")
        if not path.exists():
            raise PenstockError(f"{path}: no such file; {schema.absent.format(path=path)}")
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            what = f"not a {schema.noun}: special or over 1 MiB"
            raise PenstockError(f"{path}: {what}; name a TOML file")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise PenstockError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise PenstockError(
            f"{path}: cannot be read: {error.strerror}; check the path and its rights"
        ) from None


def _parse(text: str, path: Path, schema: Schema[S]) -> dict[str, Any]:
    try:
        return toml.parse(text)
    except toml.TooLarge as error:
        raise PenstockError(f"{path}: {error}; that is too much for a {schema.noun}") from None
    except ValueError as error:
        raise PenstockError(f"{path}{syntax(str(error), text)}") from None


def syntax(message: str, text: str) -> str:
    """Return the message of a syntax error, `:3:10: not TOML: what`, with the line and a fix."""
    place = _PLACE.search(message)
    lines = text.splitlines() or [""]
    line, column = (
        (int(place[1]), int(place[2])) if place and place[1] else (len(lines), len(lines[-1]) + 1)
    )
    shown = visible_line(lines[line - 1].strip()) if line <= len(lines) else ""
    what = message[: place.start()] if place else message
    slip = _UNQUOTED.fullmatch(shown[:_LONGEST_LINE])
    fix = "write it as KEY = VALUE, text in quotes"
    if "overwrite" in what or "twice" in what:
        fix = "a field or section stands once; remove one"
    elif slip:
        fix = f'text goes in quotes: {slip[1]} = "{slip[2]}"'
    return f":{line}:{column}: not TOML: {what[:1].lower()}{what[1:]} in `{shown[:80]}`; {fix}"


def _placed(found: list[Mistake], path: str, lines: KeyLines, changes: list[Override]) -> list[str]:
    """Return mistakes with their lines, in the file's order; those of overrides come last."""
    from_file: list[tuple[int, str]] = []
    from_command: list[str] = []
    for mistake in found:
        line = lines.of(mistake.path)
        source = next((c.source for c in changes if _comes_from(c.path, mistake.path, line)), "")
        if source:
            from_command.append(f"{source}: {mistake.text}")
            continue
        from_file.append((line or 0, f"{path}{f':{line}' if line else ''}: {mistake.text}"))
    return [text for _, text in sorted(from_file, key=lambda item: item[0])] + from_command


def _comes_from(override: tuple[str, ...], path: tuple[str | int, ...], line: int | None) -> bool:
    """Return whether the override set the value at `path`, or a part that the file lacks."""
    at_or_above = path[: len(override)] == override
    return at_or_above or (line is None and override[: len(path)] == path)


def _name_from(path: Path) -> str:
    """Return a name for a file that has none: its stem, with only characters of a name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("._-")[:100].rstrip(".") or "run"
