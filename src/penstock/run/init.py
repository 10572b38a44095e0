"""Writes a first run file."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.catalog.open.folder import shape_at
from penstock.errors import PenstockError, nearest
from penstock.run import toml
from penstock.run.schema.run import DEFAULT_SEQUENCE

KINDS = ("pretrain", "finetune")
# What stands in a template for what only the user knows.
MODEL, DATA = "path/to/model", "path/to/data.jsonl"
BATCH_TOKENS = 8192  # of a step of fine-tuning, as the template says
_STEPS = 10  # of a pass over the examples, at the least
_SAMPLES = 4  # at the least, one of them held out
_SHORTEST = 16  # tokens of a sequence
ENOUGH = _STEPS * BATCH_TOKENS  # tokens of examples for the template as it is


@dataclass(frozen=True)
class Lengths:
    """What a run file says of lengths, tokens."""

    batch: int = BATCH_TOKENS
    sequence: int = 0  # 0: left out


def lengths(model: str | None, tokens: int = ENOUGH, longest: int = 0, packed: int = 0) -> Lengths:
    """Choose lengths for a dataset of so many `tokens`: it has several steps, and samples to hold
    out.

    A sequence is no shorter than the `longest` document while there are samples enough: what is
    longer is cut. `packed` is the sequence that a built dataset was made for.
    """
    usual = packed or min(DEFAULT_SEQUENCE, _longest_of(model))
    step = min(BATCH_TOKENS, tokens // _STEPS)
    if packed or step >= usual:
        return Lengths(max(1, step // usual) * usual, packed)
    sequence = max(_power(step), min(2 * _power(longest), _power(tokens // _SAMPLES)), _SHORTEST)
    return Lengths(usual if sequence > usual else sequence, 0 if sequence >= usual else sequence)


def _longest_of(model: str | None) -> int:
    try:
        return shape_at(model, fetch=False).longest if model else DEFAULT_SEQUENCE
    except PenstockError:  # not here, or told by `penstock check`
        return DEFAULT_SEQUENCE


def _power(number: int) -> int:
    """Return the power of two that is not above the number."""
    return 1 << max(number.bit_length() - 1, 0)


def template(
    kind: str, model: str | None = None, data: str | None = None, fit: Lengths | None = None
) -> str:
    """Return the text of a run file; `model`, `data` and `fit` are for fine-tuning."""
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
    return _fitted(text, fit) if fit else text


def _fitted(text: str, fit: Lengths) -> str:
    if fit.batch != BATCH_TOKENS:
        field = "batch_tokens = "
        text = _put(text, f"{field}{BATCH_TOKENS}", f"{field}{fit.batch}")
    if fit.sequence:
        line = (
            f"sequence = {fit.sequence}".ljust(31)
            + "# tokens of a sample: chosen for these examples"
        )
        text = text.replace("\n[train]\n", f"{line}\n\n[train]\n")
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
    kind: str,
    out: Path,
    force: bool = False,
    model: str | None = None,
    data: str | None = None,
    fit: Lengths | None = None,
) -> list[str]:
    """Writes the run file; a file that is there is kept unless `force`. What is left to fill in."""
    text = template(kind, model, data, fit)
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
