"""Differences between two versions of a run file, and whether a run may continue with the new one.

Length, folder, layout, cluster, guard, budget and logging may change. Any other change would make
the rest of the run a different run, and needs a fork.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import secret
from penstock.run import fields, toml
from penstock.run.save import to_table
from penstock.run.schema.layout import LayoutSection
from penstock.run.schema.run import Run
from penstock.run.schema.train import LENGTHS, SyncSection

_SAFE = (
    "log",
    "guard",
    "cluster",
    "layout",
    "budget",
    "sites.bucket",
    "sites.name",
    "sites.quorum",
    "sites.grace",
    "sites.late",
    "sites.snapshot",
    "sites.secret",
    "evaluate.every",
    "evaluate.tokens",
    "evaluate.keep_best",
    "evaluate.patience",
    "evaluate.min_delta",
    "evaluate.tasks",
    "evaluate.tasks_dir",
    "evaluate.tasks_every",
    "evaluate.tasks_limit",
    "data.on_bad_shard",
    "data.cache",
    "data.cache_bytes",
)
LENGTH_FIELDS = tuple(f"train.{name}" for name in LENGTHS)

Value = int | float | str


@dataclass(frozen=True)
class FieldChange:
    """One field that differs; values as in a file, None if it is not set."""

    field: str
    old: Any
    new: Any
    safe: bool


def diff(old: Run, new: Run) -> list[FieldChange]:
    """Return the changes, in the order of the reference.

    Fields that `new` leaves open keep their values of `old`.
    """
    new = with_old_choices(old, new)
    before, after = _flat(to_table(with_choices(old))), _flat(to_table(with_choices(new)))
    order = {field.name: place for place, field in enumerate(fields.RUN.fields)}
    names = sorted(before.keys() | after.keys(), key=order.__getitem__)
    longer = _order(old, new) in (0, 1)
    return [
        FieldChange(name, before.get(name), after.get(name), _is_safe(name, longer))
        for name in names
        if before.get(name) != after.get(name) and name != "dir"  # a run may be moved
    ]


def settings_changes(saved: Mapping[str, Any], run: Run) -> list[FieldChange]:
    """Return the changes from a run that was saved with a checkpoint to this one.

    Name, length and safe changes are left out. A field that only one of them has was added by
    another version of Penstock; at its default it does not count.
    """
    here = _flat(json.loads(json.dumps(secret.visible_table(to_table(with_choices(run))))))
    there = _flat(dict(saved))
    defaults = {field.name: field.info.default for field in fields.RUN.fields}
    found = []
    for name in sorted(here.keys() | there.keys()):
        old, new = there.get(name), here.get(name)
        if name in ("name", "dir") or old == new or _is_safe(name, longer=True):
            continue
        if None in (old, new) and (new if old is None else old) == defaults.get(name):
            continue
        found.append(FieldChange(name, old, new, safe=False))
    return found


def with_old_choices(old: Run, new: Run) -> Run:
    """Return `new` with the fields that it leaves open taken from `old`.

    A longer run would choose a larger batch; a resume must not change it halfway.
    """
    values: dict[str, Value] = {
        "data.sequence": old.sequence,
        "train.batch_tokens": old.batch_tokens,
        "train.learning_rate": old.learning_rate,
    }
    chosen = {name: values[name] for name in new.choices()}
    if new.train.precision == "auto":  # the machine on which the run began has chosen it
        chosen["train.precision"] = old.train.precision
    new = with_fields(new, chosen)
    return with_old_agreement(old, new) if new.train.sync.auto else new


def with_old_agreement(old: Run, new: Run) -> Run:
    """Return `new` with what `train.sync.local_steps = "auto"` leaves open taken from `old`."""
    return with_agreement(
        new, old.train.sync, old.train.optimizer, old.layout.replicate if old.layout else None
    )


def with_agreement(run: Run, sync: SyncSection, optimizer: str, replicas: int | None) -> Run:
    """Return the run with a choice of how its replicas agree; what the file says stays."""
    own = run.train.sync
    open_: dict[str, Value] = {"compress": sync.compress, "stream": sync.stream}
    chosen = {n: value for n, value in open_.items() if n not in own.model_fields_set}
    chosen["local_steps"] = sync.local_steps
    changed: dict[str, Any] = {"sync": own.model_copy(update=chosen)}
    if "optimizer" not in run.train.model_fields_set:
        changed["optimizer"] = optimizer
    updates: dict[str, Any] = {"train": run.train.model_copy(update=changed)}
    layout = run.layout or LayoutSection()
    if replicas is not None and layout.replicate is None and not run.sites:
        updates["layout"] = layout.model_copy(update={"replicate": replicas})
    return run.model_copy(update=updates)


def describe_changes(changes: list[FieldChange]) -> str:
    """Return one line per change; unsafe ones are marked.

    A new section lists all its fields; those at their defaults are left out.
    """
    defaults = {field.name: field.info.default for field in fields.RUN.fields}
    told = [one for one in changes if not _is_default(one, defaults[one.field])] or changes
    lines = []
    for change in told:
        mark = "" if change.safe else "   (needs a fork)"
        old, new = _show(change.field, change.old), _show(change.field, change.new)
        lines.append(f"{change.field}: {old} → {new}{mark}")
    return "\n".join(lines)


def _is_default(change: FieldChange, default: Any) -> bool:
    given = change.new if change.old is None else change.old
    return change.safe and None in (change.old, change.new) and given == default


def with_choices(run: Run) -> Run:
    """Return the run with every choice written out, so that later rules cannot change it."""
    return with_fields(run, run.choices())


def with_fields(run: Run, values: Mapping[str, Value]) -> Run:
    """Return the run with fields replaced, without validation: the values are checked already."""
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


def is_shorter(old: Run, new: Run) -> bool:
    """Return whether `new` is shorter than `old`; False if that depends on the dataset."""
    return _order(old, new) == -1


def with_length(run: Run, other: Run) -> Run:
    """Return the run with the length of another."""
    lengths = {name: getattr(other.train, name) for name in LENGTHS}
    return run.model_copy(update={"train": run.train.model_copy(update=lengths)})


def length_override(run: Run) -> str:
    """Return the length of a run as an override: `train.tokens=3000000`."""
    given = {name: getattr(run.train, name) for name in LENGTHS}
    return next(f"train.{name}={value}" for name, value in given.items() if value is not None)


def _order(old: Run, new: Run) -> int | None:
    """Compare lengths: -1 if the new one is shorter, 0, 1; None if not comparable."""
    for name in LENGTHS:
        before, after = getattr(old.train, name), getattr(new.train, name)
        if before is not None and after is not None:
            return int(after > before) - int(after < before)
    if old.train.epochs or new.train.epochs:
        return None  # it depends on the dataset
    return int(new.steps() > old.steps()) - int(new.steps() < old.steps())


def _is_safe(name: str, longer: bool) -> bool:
    if name in LENGTH_FIELDS:
        return longer
    return any(name == safe or name.startswith(f"{safe}.") for safe in _SAFE)


def _show(field: str, value: Any) -> str:
    return "not set" if value is None else toml.format_value(secret.visible(field, value))
