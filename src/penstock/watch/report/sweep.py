"""The results of a sweep: one row for each of its runs, the best marked.

Losses are compared only between runs with the same tokenizer and the same kind of loss. A loss is
per token, and another tokenizer cuts the same text into other tokens, so 3.0 with 32,000 tokens and
3.0 with 4,096 say different things. So do the losses of dpo and simpo, or of dpo with another beta.
`web/static/compare.js` has the same rules and notes for the page; a test compares.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from penstock.policy.restart import EARLY
from penstock.style import UNKNOWN, format_duration, format_loss, format_percent
from penstock.watch.report.screen import summary

if TYPE_CHECKING:  # imports torch
    from penstock.launch.vary import Variant, VariantOutcome

NOTE = (
    "The runs have different tokenizers, and a loss is per token: the losses cannot be compared, "
    "so none is marked as the best."
)
NOTE_KIND = (
    "The runs have different objectives, or other values of them, so their losses are other "
    "numbers: they cannot be compared, and none is marked as the best."
)
DONE = ("done", EARLY)
KEYS = ("status", "steps", "tokens", "loss", "val_loss", "tokens_per_s", "wall_s", "dataset",
        "tokenizer", "loss_kind")  # fmt: skip


def sweep_summary(all_: Sequence["Variant"], ended: Sequence["VariantOutcome"]) -> dict[str, Any]:
    """Return everything the table knows, as plain values.

    `best` is a run's name; None where none is done, or where `note` says why there is none.
    """
    errors = {end.variant.run.name: end.error for end in ended}
    rows = [_row(variant, errors.get(variant.run.name, "")) for variant in all_]
    done = [row for row in rows if row["status"] in DONE and row["loss"] is not None]
    if not same_tokenizer(done):
        return {"best": None, "note": NOTE, "runs": rows}
    if len({row["loss_kind"] for row in done} - {None}) > 1:
        return {"best": None, "note": NOTE_KIND, "runs": rows}
    # The validation loss if all of them have one.
    kind = "loss" if any(row["val_loss"] is None for row in done) else "val_loss"
    best = min(done, key=lambda row: float(row[kind]))["run"] if done else None
    return {"best": best, "note": None, "runs": rows}


def _row(variant: "Variant", error: str) -> dict[str, Any]:
    folder = variant.folder
    values: dict[str, Any] = (
        summary(folder) if folder.exists() else {"status": "failed" if error else "not started"}
    )
    known = {name: values.get(name) for name in KEYS}
    own = {"run": folder.name, "folder": str(folder.path), "values": variant.values}
    rewards = (values.get("val_rewards") or [values.get("rewards")])[-1] or {}
    paid = {name: rewards.get(name) for name in ("margin", "accuracy")}
    return {**own, **known, **paid, "error": error or None}


def table(found: dict[str, Any]) -> Table:
    """Return the table of a `sweep_summary`."""
    rows = found["runs"]
    fields = list(rows[0]["values"])
    pairs = any(row["accuracy"] is not None for row in rows)
    of_pairs = ("margin", "accuracy") if pairs else ()
    shown = Table(*fields, "loss", "validation", *of_pairs, "tokens/s", "time", "", box=None)
    for row in rows:
        speed = f"{row['tokens_per_s']:,.0f}" if row["tokens_per_s"] else "–"
        time = format_duration(row["wall_s"]) if row["wall_s"] else "–"
        numbers = [format_loss(row["loss"]), format_loss(row["val_loss"])]
        if pairs:
            right = UNKNOWN if row["accuracy"] is None else format_percent(row["accuracy"])
            numbers += [format_loss(row["margin"]), right]
        numbers += [speed, time]
        best = row["run"] == found["best"]
        mark = Text("best", "green") if best else Text("" if row["status"] in DONE else _why(row))
        shown.add_row(*map(Text, [*row["values"].values(), *numbers]), mark)
    return shown


def _why(row: dict[str, Any]) -> str:
    return f"{row['status']}: {row['error'].splitlines()[0]}" if row["error"] else row["status"]


def same_tokenizer(plans: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all runs with these plans read the same tokens.

    The plan of an earlier version names no tokenizer; the same dataset has the same one.
    """
    return all(_alike(plans[0], other) for other in plans[1:])


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    key = "tokenizer" if one.get("tokenizer") and other.get("tokenizer") else "dataset"
    return one.get(key) == other.get(key)
