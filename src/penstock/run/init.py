"""Templates of run files, for `penstock init`."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.catalog.open.folder import shape_of_model
from penstock.errors import PenstockError, nearest
from penstock.run import toml
from penstock.run.schema.run import DEFAULT_SEQUENCE

KINDS = ("pretrain", "finetune", "preference")
# Placeholders in a template for what only the user knows.
MODEL, DATA = "path/to/model", "path/to/data.jsonl"
BATCH_TOKENS = 8192  # of a step of fine-tuning, as the template says
PAIR_SEQUENCE = 1024  # of preference tuning, as the template says, with 16 pairs in a step
_STEPS = 10  # minimum for one pass over the examples
_SAMPLES = 4  # minimum, one of them held out
_SHORTEST = 16  # minimum tokens of a sequence
ENOUGH = _STEPS * BATCH_TOKENS  # tokens of examples that the unchanged template needs


@dataclass(frozen=True)
class InitLengths:
    """Lengths in a run file, tokens."""

    batch: int = BATCH_TOKENS
    sequence: int = 0  # 0: left out


def choose_lengths(
    model: str | None, tokens: int = ENOUGH, longest: int = 0, packed: int = 0
) -> InitLengths:
    """Choose lengths that give a dataset of so many `tokens` several steps and held-out samples.

    A sequence is at least as long as the `longest` document if there are enough samples, because
    longer documents are cut. `packed` is the sequence that a built dataset was packed for.
    """
    usual = packed or min(DEFAULT_SEQUENCE, _longest_of(model))
    step = min(BATCH_TOKENS, tokens // _STEPS)
    if packed or step >= usual:
        return InitLengths(max(1, step // usual) * usual, packed)
    sequence = max(_power(step), min(2 * _power(longest), _power(tokens // _SAMPLES)), _SHORTEST)
    return InitLengths(
        usual if sequence > usual else sequence, 0 if sequence >= usual else sequence
    )


def _longest_of(model: str | None) -> int:
    try:
        return shape_of_model(model, fetch=False).longest if model else DEFAULT_SEQUENCE
    except PenstockError:  # not here, or `penstock check` reports it
        return DEFAULT_SEQUENCE


def _power(number: int) -> int:
    """Return the largest power of two that is not above the number."""
    return 1 << max(number.bit_length() - 1, 0)


def template(
    kind: str, model: str | None = None, data: str | None = None, fit: InitLengths | None = None
) -> str:
    """Return the text of a run file; `model`, `data` and `fit` are for fine-tuning; `fit` is not
    for pairs, whose sequence the template says unless the model's context is shorter."""
    if kind not in KINDS:
        guess = nearest(kind, KINDS)
        raise PenstockError(
            f"init {kind}: no such kind; write pretrain, finetune or preference. {guess}".rstrip()
        )
    text = (files("penstock.run") / "templates" / f"{kind}.toml").read_text(encoding="utf-8")
    for option, given, placeholder in (("--model", model, MODEL), ("--data", data, DATA)):
        if given is None:
            continue
        quoted = toml.format_value(placeholder)
        if quoted not in text:
            raise PenstockError(
                f"init {kind}: {option} is for `penstock init finetune` and `preference`"
            )
        text = _put(text, quoted, toml.format_value(given))
    if kind == "preference":
        return _fitted_pairs(text, min(PAIR_SEQUENCE, _longest_of(model)))
    return _fitted(text, fit) if fit and kind == "finetune" else text


def _fitted_pairs(text: str, sequence: int) -> str:
    """Write a shorter sequence, with as many pairs in a step."""
    if sequence == PAIR_SEQUENCE:
        return text
    batch, tokens = PAIR_SEQUENCE * 32, sequence * 32
    text = _put(text, f"sequence = {PAIR_SEQUENCE}", f"sequence = {sequence}")
    text = _put(text, f"batch_tokens = {batch}", f"batch_tokens = {tokens}")
    return text.replace(f"sequences × {PAIR_SEQUENCE}", f"sequences × {sequence}")


def _fitted(text: str, fit: InitLengths) -> str:
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
    """Replace `placeholder`; a comment after it stays in its column if there is space."""
    before, _, after = text.partition(placeholder)
    if (rest := after.lstrip(" ")).startswith("#"):
        value = value.ljust(len(placeholder) + len(after) - len(rest) - 1) + " "
        after = rest
    return before + value + after


def open_fields(text: str) -> list[str]:
    """Return the fields of a template that still hold placeholders."""
    found = {"model.from": MODEL, "data.dataset": DATA}
    return [field for field, placeholder in found.items() if toml.format_value(placeholder) in text]


def write_run_file(
    kind: str,
    out: Path,
    force: bool = False,
    model: str | None = None,
    data: str | None = None,
    fit: InitLengths | None = None,
) -> list[str]:
    """Write the run file; return the fields to fill in. Without `force` keep an existing file."""
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
