"""What changed between two versions of a run file, and whether a run may go on with the new one.

A run may be made longer, moved, spread, guarded, paid for and shown otherwise. Anything else would
make the rest of the run belong to another run, and needs a fork.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import secret
from penstock.run import fields, toml
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.run.schema.train import LENGTHS

_SAFE = (
    "log",
    "guard",
    "cluster",
    "layout",
    "budget",
    "evaluate.every",
    "evaluate.tokens",
    "evaluate.keep_best",
    "evaluate.patience",
    "evaluate.min_delta",
    "data.on_bad_shard",
    "data.cache",
    "data.cache_bytes",
)
LENGTH_FIELDS = tuple(f"train.{name}" for name in LENGTHS)

Value = int | float | str


@dataclass(frozen=True)
class Change:
    """One field that differs; values as they stand in a file, None where it is not set."""

    field: str
    old: Any
    new: Any
    safe: bool


def diff(old: Run, new: Run) -> list[Change]:
    """The changes, in the reference's order. What `new` leaves open stays as it was in `old`."""
    new = keep_choices(old, new)
    before, after = _flat(to_table(closed(old))), _flat(to_table(closed(new)))
    order = {field.name: place for place, field in enumerate(fields.fields())}
    names = sorted(before.keys() | after.keys(), key=order.__getitem__)
    longer = _order(old, new) in (0, 1)
    return [
        Change(name, before.get(name), after.get(name), _is_safe(name, longer))
        for name in names
        if before.get(name) != after.get(name) and name != "dir"  # a run may be moved
    ]


def unlike(saved: Mapping[str, Any], run: Run) -> list[Change]:
    """Return the settings in which a run differs from one whose table was saved with a checkpoint,
    apart from its name, its length and what may be changed on the way.

    A field that only one of them has was added by another version; at its default it says nothing.
    """
    here = _flat(json.loads(json.dumps(secret.visible_table(to_table(closed(run))))))
    there = _flat(dict(saved))
    defaults = {field.name: field.info.default for field in fields.fields()}
    found = []
    for name in sorted(here.keys() | there.keys()):
        old, new = there.get(name), here.get(name)
        if name in ("name", "dir") or old == new or _is_safe(name, longer=True):
            continue
        if None in (old, new) and (new if old is None else old) == defaults.get(name):
            continue
        found.append(Change(name, old, new, safe=False))
    return found


def keep_choices(old: Run, new: Run) -> Run:
    """`new` with what it leaves open taken from `old`.

    A longer run would choose a larger batch; going on must not change it halfway.
    """
    values: dict[str, Value] = {
        "data.sequence": old.sequence,
        "train.batch_tokens": old.batch_tokens,
        "train.learning_rate": old.learning_rate,
    }
    chosen = {name: values[name] for name in new.choices()}
    if new.train.precision == "auto":  # chosen by the machine on which the run began
        chosen["train.precision"] = old.train.precision
    return with_fields(new, chosen)


def describe(changes: list[Change]) -> str:
    """One line for each change, those that cannot go through marked.

    A section that is new names each of its fields; those at their defaults say nothing new.
    """
    defaults = {field.name: field.info.default for field in fields.fields()}
    told = [one for one in changes if not _is_default(one, defaults[one.field])] or changes
    lines = []
    for change in told:
        mark = "" if change.safe else "   (needs a fork)"
        old, new = _show(change.field, change.old), _show(change.field, change.new)
        lines.append(f"{change.field}: {old} → {new}{mark}")
    return "\n".join(lines)


def _is_default(change: Change, default: Any) -> bool:
    given = change.new if change.old is None else change.old
    return change.safe and None in (change.old, change.new) and given == default


def closed(run: Run) -> Run:
    """The run with every choice made, so that a later version's rules cannot change it."""
    return with_fields(run, run.choices())


def with_fields(run: Run, values: Mapping[str, Value]) -> Run:
    """Return the run with fields replaced, unchecked: the values come from a checked run."""
    sections: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        section, _, field = name.partition(".")
        sections.setdefault(section, {})[field] = value
    parts = {name: getattr(run, name).model_copy(update=part) for name, part in sections.items()}
    return run.model_copy(update=parts)


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        whole = f"{above}{name}"
        flat |= _flat(value, f"{whole}.") if isinstance(value, dict) else {whole: value}
    return flat


def shorter(old: Run, new: Run) -> bool:
    """Whether `new` is shorter than `old`; False where only the dataset could tell."""
    return _order(old, new) == -1


def with_length(run: Run, other: Run) -> Run:
    """Return the run with the length of another."""
    lengths = {name: getattr(other.train, name) for name in LENGTHS}
    return run.model_copy(update={"train": run.train.model_copy(update=lengths)})


def length_words(run: Run) -> str:
    """Return the length of a run as an override: `train.tokens=3000000`."""
    given = {name: getattr(run.train, name) for name in LENGTHS}
    return next(f"train.{name}={value}" for name, value in given.items() if value is not None)


def _order(old: Run, new: Run) -> int | None:
    """Compare lengths: -1 where the new one is shorter, 0, 1; None if not comparable."""
    for name in LENGTHS:
        before, after = getattr(old.train, name), getattr(new.train, name)
        if before is not None and after is not None:
            return int(after > before) - int(after < before)
    if old.train.epochs or new.train.epochs:
        return None  # only the dataset would tell
    return int(new.steps() > old.steps()) - int(new.steps() < old.steps())


def _is_safe(name: str, longer: bool) -> bool:
    if name in LENGTH_FIELDS:
        return longer
    return any(name == safe or name.startswith(f"{safe}.") for safe in _SAFE)


def _show(field: str, value: Any) -> str:
    return "not set" if value is None else toml.value(secret.visible(field, value))
