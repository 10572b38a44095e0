"""References generated from a schema: Markdown tables for people, and JSON schema for editors."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from penstock.run import toml
from penstock.run.fields import Path, Schema, SchemaField
from penstock.run.schema.section import Section, Switch

Remark = Callable[[str], str]  # returns an extra remark for the field or section of this name


def _nothing(name: str) -> str:
    return ""


def markdown(schema: Schema[Any], head: str, remark: Remark = _nothing) -> str:
    """Return a table of fields for the top of the file and for each section, below `head`."""
    parts = [head, _table("The top of the file", schema, schema.root, (), remark)]
    for field in schema.fields:
        if field.section:
            brackets = f"[[{field.name}]]" if field.repeated else f"[{field.name}]"
            parts.append(_table(f"`{brackets}`", schema, field.section, field.path, remark))
    return "\n".join(parts)


def json_schema(schema: Schema[Any], remark: Remark = _nothing) -> dict[str, Any]:
    """Return a JSON schema (draft 7) with the names of the file."""
    top = _object(schema, schema.root, (), remark)
    return {"$schema": "http://json-schema.org/draft-07/schema#", **top}


def _table(
    title: str, schema: Schema[Any], section: type[Section], path: Path, remark: Remark
) -> str:
    doc = f"{cleandoc(section.__doc__ or '')}{remark('.'.join(path))}\n\n" if path else ""
    defaults = _defaults(section)
    rows = [_row(field, defaults, remark) for field in _own(schema, path) if not field.section]
    head = ["| field | takes | default | |", "|---|---|---|---|"] if rows else []
    return f"\n## {title}\n\n{doc}" + "\n".join(head + rows)


def _row(field: SchemaField, defaults: dict[str, Any], remark: Remark) -> str:
    found = defaults.get(field.path[-1])
    default = "" if found in (None, (), []) else f"`{toml.format_value(found)}`"
    if _is_required(field):
        default = "required"
    what = f"{field.info.description}{remark(field.name)}"
    cells = [f"`{field.path[-1]}`", field.kind["title"], default, what]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _object(
    schema: Schema[Any], section: type[Section], path: Path, remark: Remark
) -> dict[str, Any]:
    own = _own(schema, path)
    required = [field.path[-1] for field in own if _is_required(field)]
    defaults = _defaults(section)
    table: dict[str, Any] = {
        "type": "object",
        "description": cleandoc(section.__doc__ or ""),
        "additionalProperties": False,
        "properties": {f.path[-1]: _property(schema, f, defaults, remark) for f in own},
    }
    return table | ({"required": required} if required else {})


def _property(
    schema: Schema[Any], field: SchemaField, defaults: dict[str, Any], remark: Remark
) -> dict[str, Any]:
    about: dict[str, Any] = {"description": f"{field.info.description}{remark(field.name)}"}
    if field.section:
        table = _object(schema, field.section, field.path, remark)
        if issubclass(field.section, Switch):
            return {"anyOf": [{"type": "boolean"}, table]} | about
        return ({"type": "array", "items": table} if field.repeated else table) | about
    default = defaults.get(field.path[-1])
    return field.kind | about | ({} if default is None else {"default": default})


def _is_required(field: SchemaField) -> bool:
    """Return whether a file must have the field; `name` defaults to the name of the file."""
    return field.info.is_required() and field.name != "name"


def _own(schema: Schema[Any], path: Path) -> list[SchemaField]:
    return [field for field in schema.fields if field.path[:-1] == path]


def _defaults(section: type[Section]) -> dict[str, Any]:
    """Return the defaults as a file would write them; fields without a default are absent."""
    empty = section.model_construct()
    return empty.model_dump(by_alias=True, exclude_none=True, warnings=False)
