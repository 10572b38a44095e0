"""The reference of the run file, made from the schema: Markdown, and JSON schema for editors."""

from inspect import cleandoc
from typing import Any

from penstock.run import fields, toml
from penstock.run.fields import Field
from penstock.run.file import Run
from penstock.run.notyet import GAPS
from penstock.run.section import Section

_HEAD = """\
# The run file

<!-- Made by `penstock schema --markdown` from src/penstock/run/. Do not edit. -->

One TOML file describes a run. Every field is here, with its type, its default and its unit; a field
without a default may be left out. *Not yet* marks what the file can say and this version cannot do:
it is refused before anything starts.

Any field can be set on the command line too, and beats the file:
`penstock train run.toml train.tokens=2B`.

For completion and checks while you type, `penstock schema > run.schema.json` and put
`#:schema ./run.schema.json` on the first line of the run file (Even Better TOML, taplo).

## Quantities

| kind | written as |
|---|---|
| count | `524288`, `"512Ki"`, `"0.5M"`, `"1.5T"`: K M B T are decimal, Ki Mi Gi Ti binary |
| duration | `"90 s"`, `"10 min"`, `"2 h"`, `"1 day"`, `"250 ms"` |
| interval | `"250 steps"` or a duration |
| share | `"0.5%"` or `0.005` |
"""


def markdown() -> str:
    """The text of docs/run-file.md."""
    parts = [_HEAD, _table("The top of the file", Run, ())]
    for field in fields.fields():
        if field.section:
            brackets = f"[[{field.name}]]" if field.repeated else f"[{field.name}]"
            parts.append(_table(f"`{brackets}`", field.section, field.path))
    return "\n".join(parts)


def json_schema() -> dict[str, Any]:
    """A JSON schema (draft 7) with the names of the file."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_object(Run, ())}


def _table(title: str, section: type[Section], path: tuple[str, ...]) -> str:
    doc = (
        ""
        if section is Run
        else f"{cleandoc(section.__doc__ or '')}{_gap_mark('.'.join(path))}\n\n"
    )
    rows = ["| field | takes | default | |", "|---|---|---|---|"]
    defaults = _defaults(section)
    for field in _own(path):
        if field.section:
            continue
        default = f"`{toml.value(defaults[field.path[-1]])}`" if field.path[-1] in defaults else ""
        if field.info.is_required() and field.name != "name":
            default = "required"
        what = f"{field.info.description}{_gap_mark(field.name)}"
        cells = [f"`{field.path[-1]}`", field.kind["title"], default, what]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return f"\n## {title}\n\n{doc}" + "\n".join(rows)


def _gap_mark(name: str) -> str:
    return "".join(f" *Not yet: {gap.what}.*" for gap in GAPS if gap.field == name)


def _object(section: type[Section], path: tuple[str, ...]) -> dict[str, Any]:
    own = _own(path)
    required = [f.path[-1] for f in own if f.info.is_required() and f.name != "name"]
    defaults = _defaults(section)
    schema: dict[str, Any] = {
        "type": "object",
        "description": cleandoc(section.__doc__ or ""),
        "additionalProperties": False,
        "properties": {field.path[-1]: _property(field, defaults) for field in own},
    }
    return schema | ({"required": required} if required else {})


def _property(field: Field, defaults: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {"description": f"{field.info.description}{_gap_mark(field.name)}"}
    if field.section:
        table = _object(field.section, field.path)
        return ({"type": "array", "items": table} if field.repeated else table) | about
    default = defaults.get(field.path[-1])
    return field.kind | about | ({} if default is None else {"default": default})


def _own(path: tuple[str, ...]) -> list[Field]:
    return [field for field in fields.fields() if field.path[:-1] == path]


def _defaults(section: type[Section]) -> dict[str, Any]:
    """Defaults as they would stand in the file; fields that have none are absent."""
    empty = section.model_construct()
    return empty.model_dump(by_alias=True, exclude_none=True, warnings=False)
