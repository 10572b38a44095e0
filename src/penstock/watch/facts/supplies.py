"""What a run lives on and leaves, for its page: data, energy and money; checkpoints."""

from typing import Any

from penstock.guard.tiers.listing import list_checkpoints
from penstock.ledger.causes import Cause
from penstock.meter.clock import now
from penstock.style import format_duration, plural
from penstock.watch.facts.costs import costs_with
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.view import View
from penstock.watch.style.text import dataset_text

Section = dict[str, Any]
MOST_KEPT = 8  # checkpoints in the list
MOST_DEVICES = 64


def checkpoints(view: View) -> Section:
    """What there is to go back to. Another place is not asked: what was told of it is shown."""
    saved = view.told("saved")
    found, _ = list_checkpoints(view.folder, elsewhere=False)
    kept: list[dict[str, Any]] = [
        {
            "step": one.step,
            "tier": one.tier,
            "bytes": one.bytes,
            "t": None if one.age_s is None else round(now() - one.age_s),
            "state": one.state,
            "good": one.state.startswith("whole"),
            "path": one.files.where,
        }
        for one in found
    ]
    for event in saved[::-1]:
        if event.payload.get("tier") == "remote" and len(kept) < MOST_KEPT:
            names = ("step", "tier", "bytes", "path")
            about: dict[str, Any] = {name: event.payload.get(name) for name in names}
            kept.append({**about, "t": round(event.t), "state": "saved", "good": True})
    kept.sort(key=lambda one: -int(str(one["step"])))
    held_up_s = view.account.ledger.seconds[Cause.CHECKPOINT] / max(1, view.account.ranks)
    return {
        "kept": kept[:MOST_KEPT],
        "saved": len(saved),
        "says": f"{plural(len(saved), 'durable save')} so far; steps were held up for "
        f"{format_duration(held_up_s)}",
    }


def data(view: View) -> Section:
    """What the run reads, how full its buffer is, and what the accelerators waited for it."""
    feed = next(reversed(view.told("feed")), None)
    seconds = view.account.ledger.seconds[Cause.DATA_WAIT]
    return {
        "dataset": dataset_text(view.plan["dataset"]) if "dataset" in view.plan else None,
        "samples": view.plan.get("samples"),
        "feed": feed.payload | {"t": feed.t} if feed else None,
        "tokens": int(view.curve["tokens"][-1]) if len(view.curve) else 0,
        "waited_s": seconds / max(1, view.account.ranks),
        "waited": view.account.ledger.share(Cause.DATA_WAIT),
        "skipped": len(view.skipped),
    }


def energy(view: View) -> Section:
    """Joules, USD and gCO2e so far and to go; null where nobody can know."""
    found = energy_of(view)
    told = found.to_json() if found else None
    if told:
        told["devices"] = told["devices"][:MOST_DEVICES]
    return {"energy": told, "costs": costs_with(view, found).to_json()}
