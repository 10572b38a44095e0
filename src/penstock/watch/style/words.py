"""Numbers as a person says them on a screen."""

import math
from typing import Any

from penstock.run.schema.quantity import show_about

# Control characters, halves of surrogate pairs, and marks that turn the direction of writing.
_STEERING = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys((*_STEERING, *range(0xD800, 0xE000)), "\ufffd") | {10: "\n", 9: "\t"}


def spoken(seconds: float) -> str:
    """`0.4 s`, `38 s`, `2 min 05 s`, `3 h 12 min`, `4 d 06 h`: two units at most."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `8 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def dataset(named: object) -> str:
    """What a plan says a run reads: a name, also with its place, or several of them."""
    if isinstance(named, list):
        return " + ".join(dataset(one) for one in named)
    return f"{named['id']} at {named['at']}" if isinstance(named, dict) else str(named)


def finite(number: float) -> float | None:
    """None for what is no number: JSON has no NaN."""
    return float(number) if math.isfinite(number) else None


def loss(value: float | None) -> str:
    """`4.357`, or a dash where there is none (yet, or any more)."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def size(plan: dict[str, Any]) -> str:
    """Of the model, and of what is trained of it where that is not all."""
    if not plan.get("params"):
        return "own module"
    trained = f", {show_about(plan['trained'])} trained beside them" if "trained" in plan else ""
    return f"{show_about(plan['params'])} parameters{trained}"


def printable(text: str) -> str:
    """A file may hold anything: what would steer a terminal or break a page is shown as �."""
    return text.translate(_CONTROLS)


def grams(amount: float) -> str:
    """In three digits: `64.0 mg`, `1.20 g`, `35.1 kg`, `2.10 t`."""
    for unit, factor in (("t", 1e-6), ("kg", 1e-3), ("g", 1.0)):
        if amount * factor >= 1:
            return f"{digits(amount * factor)} {unit}"
    return f"{digits(amount * 1e3)} mg"


def digits(value: float) -> str:
    """Three of them."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
