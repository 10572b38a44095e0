"""Small sweeps: one run file with some fields varied, as runs one after the other.

Each variant is a run like any other, in a folder of its own whose name says what was varied: it
resumes, reports and forks. So a sweep has no state of its own. Given again, the same command passes
over what is done and goes on where it was.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from penstock import secret
from penstock.errors import PenstockError
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.ledger.journal.events import InvocationStarted, StopSignal
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.run.unsupported import refuse_unsupported

_OPEN, _CLOSE, _QUOTES = "[{", "]}", "\"'"


@dataclass(frozen=True)
class Variant:
    """One run of a sweep, and the values of its varied fields."""

    run: Run
    values: dict[str, str]  # field: value, as they were written, without secrets

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.run.folder)


@dataclass(frozen=True)
class VariantOutcome:
    """A variant that ended, and why it failed if it did."""

    variant: Variant
    error: str = ""


def variants(file: str, overrides: Sequence[str], vary: Sequence[str]) -> list[Variant]:
    """Return every combination of the values, checked before the first of them starts."""
    fields = dict(_field(text) for text in vary)
    given = [text.partition("=")[0].strip() for text in overrides]
    for field in fields:
        if field in given or len(fields) < len(vary):
            raise PenstockError(f"--vary {field}: given twice; write all its values in one --vary")
    base, found = load(file, overrides).name, {}
    for values in product(*fields.values()):
        chosen = dict(zip(fields, values, strict=True))
        name = f"{base}-vary-{_named(chosen)}"  # a folder, so it holds no secret
        if name in found:
            raise PenstockError(
                f"--vary: two of the runs would be called {name}; name each value once, and vary "
                "no secret: a run is not named by one"
            )
        own = [f"{field}={value}" for field, value in chosen.items()]
        shown = {field: secret.visible(field, value) for field, value in chosen.items()}
        found[name] = Variant(load(file, [*overrides, *own, f"name={name}"]), shown)
    for variant in found.values():
        refuse_unsupported(variant.run)
    return list(found.values())


def _field(text: str) -> tuple[str, list[str]]:
    field, _, rest = text.partition("=")
    field, values = field.strip(), [value.strip() for value in _pieces(rest)]
    if not field or not all(values):
        raise PenstockError(
            f"--vary {text}: not a field and its values; write --vary train.learning_rate=1e-3,3e-3"
        )
    if field in ("name", "dir"):
        raise PenstockError(f"--vary {field}: each run is named by what is varied; vary others")
    return field, values


def _pieces(text: str) -> Iterator[str]:
    """Split at the commas that are not in a list, a table or quotes."""
    piece, depth, quote = "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        depth += (letter in _OPEN) - (letter in _CLOSE) if not quote else 0
        if letter == "," and not depth and not quote:
            yield piece
            piece = ""
        else:
            piece += letter
    yield piece


def _named(values: dict[str, str]) -> str:
    """Return a name such as `learning_rate-3e-4-clip-0.5`; full paths where fields end alike."""
    last = [field.rpartition(".")[2] for field in values]
    short = len(set(last)) == len(last)
    parts = [
        f"{field.rpartition('.')[2] if short else field}-{secret.visible(field, value)}"
        for field, value in values.items()
    ]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts)).rstrip(".")


def train_all(
    varied: Sequence[Variant],
    display: Callable[[], Listener],
    fresh: bool = False,
    began: float | None = None,
) -> Iterator[VariantOutcome]:
    """Train one after the other. One that fails does not stop the others; a person's stop does."""
    for variant in varied:
        error = ""
        try:
            start(variant.run, fresh=fresh, listener=display(), began=began)
        except PenstockError as problem:
            error = str(problem)
        yield VariantOutcome(variant, error)
        began = None
        if asked_to_stop(variant.folder):
            return


def asked_to_stop(folder: RunFolder) -> bool:
    """Return whether a signal such as Ctrl-C stopped the last invocation of a run."""
    for line in reversed(read_events(folder.journal / SUPERVISOR)):
        if isinstance(line.event, StopSignal):
            return True
        if isinstance(line.event, InvocationStarted):
            return False
    return False
