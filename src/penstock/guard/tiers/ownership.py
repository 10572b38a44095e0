"""Check that a checkpoint belongs to this run. A whole one of another run is as wrong as a damaged
one.

The manifest names the run, the settings that decide weights, and the step; the journal has the step
on record with the manifest's hash.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock import secret
from penstock.guard.format.manifest import CheckpointManifest
from penstock.guard.format.published import StoredCheckpoint
from penstock.run.diff import FieldChange, settings_changes
from penstock.run.fingerprint import settings_fingerprint
from penstock.run.schema.run import Run

SHOWN = 4  # differences in one message
ADOPT = "`penstock checkpoint adopt` takes over one of another run"


@dataclass(frozen=True)
class Owner:
    """The run that a checkpoint must belong to."""

    identity: str
    run: Run | None = None  # whose settings are compared; None: they are not
    recorded: Callable[[], Mapping[int, str]] = dict  # hashes of manifests by step, by the journal
    forked_step: int | None = None  # whose checkpoint the run began with, in format 3

    def refusal(self, found: StoredCheckpoint) -> str:
        """Say why a whole checkpoint does not belong to this run; "" if it does."""
        about = found.read_manifest()
        step = found.step if about.step is None else about.step
        if about.run and about.run != self.identity:
            return self._of_another_run(found, about)
        if changes := self._unlike(found, about):
            return f"made with other settings: {_words(changes)}"
        on_record = self.recorded().get(step) if found.tier != "memory" else None
        if on_record is not None and about.format > 3 and on_record != about.digest:
            return (
                f"not the checkpoint of step {step} that the journal recorded (manifest "
                f"{about.digest[:8]} there, {on_record[:8]} on record)"
            )
        return ""

    def _of_another_run(self, found: StoredCheckpoint, about: CheckpointManifest) -> str:
        table = _table(found)
        there = f"{table.get('name', '?')!r:.80} ({about.run[:8]})"
        here = f"'{self.run.name}' ({self.identity[:8]})" if self.run else self.identity[:8]
        changes = settings_changes(table, self.run) if self.run and table else []
        differs = f"; {_words(changes)}" if changes else ""
        return f"a checkpoint of another run, {there}, and this is {here}{differs}"

    def _unlike(self, found: StoredCheckpoint, about: CheckpointManifest) -> list[FieldChange]:
        """Return the settings that differ.

        Equal hashes need no comparison. A later version may hash more settings, so unequal hashes
        are compared field by field.
        """
        if self.run is None or about.origin:
            return []
        if about.format == 3 and found.step == self.forked_step:
            return []
        if (about.settings or about.format > 3) and about.settings in (
            "",
            settings_fingerprint(self.run),
        ):
            return []
        table = _table(found)
        return settings_changes(table, self.run) if table else []


def _table(found: StoredCheckpoint) -> dict[str, Any]:
    """Return the run file that a checkpoint was made with; empty if it does not say."""
    table = found.scalars.get("run")
    return table if isinstance(table, dict) else {}


def _words(changes: list[FieldChange]) -> str:
    said = [
        f"{_field(one)} is {_shown(one, one.old)} there, {_shown(one, one.new)} here"
        for one in changes[:SHOWN]
    ]
    more = len(changes) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def _field(change: FieldChange) -> str:
    """Return the name of a field. A field that no version has may hold anything."""
    known = change.field.replace("_", "").replace(".", "")
    plain = known.isascii() and known.isalnum()
    return change.field if plain else json.dumps(change.field)[:80]


def _shown(change: FieldChange, value: Any) -> str:
    """Return a value as JSON: a stranger may have written it."""
    if value is None:
        return "not set"
    return json.dumps(secret.visible(change.field, value))[:80]
