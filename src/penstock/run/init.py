"""Writes a first run file."""

from importlib.resources import files
from pathlib import Path

from penstock.errors import PenstockError, nearest
from penstock.run import toml

KINDS = ("pretrain", "finetune")
# What stands in a template for what only the user knows.
MODEL, DATA = "path/to/model", "path/to/data.jsonl"


def template(kind: str, model: str | None = None, data: str | None = None) -> str:
    """The text of the run file for a kind of work; `model` and `data` are for fine-tuning."""
    if kind not in KINDS:
        guess = nearest(kind, KINDS)
        raise PenstockError(
            f"init {kind}: no such kind; write pretrain or finetune. {guess}".rstrip()
        )
    text = (files("penstock.run") / "templates" / f"{kind}.toml").read_text(encoding="utf-8")
    for option, given, placeholder in (("--model", model, MODEL), ("--data", data, DATA)):
        if given is None:
            continue
        quoted = toml.value(placeholder)
        if quoted not in text:
            raise PenstockError(f"init {kind}: {option} is for `penstock init finetune`")
        text = _put(text, quoted, toml.value(given))
    return text


def _put(text: str, placeholder: str, value: str) -> str:
    """`value` for `placeholder`; a comment behind it stays in its column where there is room."""
    before, _, after = text.partition(placeholder)
    if (rest := after.lstrip(" ")).startswith("#"):
        value = value.ljust(len(placeholder) + len(after) - len(rest) - 1) + " "
        after = rest
    return before + value + after


def open_fields(text: str) -> list[str]:
    """The fields of a template that are still to be filled in."""
    found = {"model.from": MODEL, "data.dataset": DATA}
    return [field for field, placeholder in found.items() if toml.value(placeholder) in text]


def write(
    kind: str, out: Path, force: bool = False, model: str | None = None, data: str | None = None
) -> list[str]:
    """Writes the run file; a file that is there is kept unless `force`. What is left to fill in."""
    text = template(kind, model, data)
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PenstockError(
            f"{out}: there is such a file; add --force or --out OTHER.toml"
        ) from None
    except OSError as error:
        raise PenstockError(
            f"{out}: cannot be written: {error.strerror}; choose another --out"
        ) from None
    return open_fields(text)
