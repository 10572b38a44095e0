"""The look of values: number formats with their units, and the colours of the causes.

Everything that shows a number or a cause to people takes its format from here: `penstock plan` and
its picture, the terminal, the page, the reports. The file stands at the root of the package, below
all rooms like `errors`, because rooms import downward only and `plan/` stands below `watch/`. It
imports nothing of Penstock, so that every room can use it.

The page in the browser formats numbers in JavaScript (`watch/web/static/format.js`). A browser test
compares it with this file value by value. Its cause colours are generated from `CAUSE_COLOURS`.

Formats that read back exactly, for run files, are in `run/schema/quantity.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, log10

UNKNOWN = "–"

# Measured values


def format_duration(seconds: float) -> str:
    """Format a measured time in at most two units: `0.4 s`, `2 min 05 s`, `4 d 06 h`."""
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


def format_step_time(seconds: float) -> str:
    """Format the time of one step, which is often below a second: `512 ms`, `1.23 s`."""
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def format_count(number: float) -> str:
    """Format a count in three figures: 3214592 is `3.21M`."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        scaled = number / size
        if scaled >= 0.9995:
            return f"{scaled:.3g}{unit}" if scaled < 999.5 else f"{scaled:,.0f}{unit}"
    return f"{number:.3g}"


def format_bytes(number: int) -> str:
    """Format a number of bytes in binary units: `1.5 GiB`, `512 B`."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << power:
            return f"{number / (1 << power):.1f} {unit}"
    return f"{number:,} B"


def format_energy(joules: float) -> str:
    """Format an energy in three digits: `690 J`, `12.5 Wh`, `3.42 kWh`, `1.25 MWh`."""
    for unit, size in (("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3.6e3)):
        if joules >= size:
            return f"{format_three_digits(joules / size)} {unit}"
    return f"{joules:.0f} J"


def format_mass(grams: float) -> str:
    """Format a mass in three digits: `64.0 mg`, `1.20 g`, `35.1 kg`, `2.10 t`."""
    for unit, size in (("t", 1e6), ("kg", 1e3), ("g", 1.0)):
        if grams >= size:
            return f"{format_three_digits(grams / size)} {unit}"
    return f"{format_three_digits(grams * 1e3)} mg"


def format_usd(usd: float) -> str:
    """Format US dollars: `$1,235`, `$0.12`; amounts below ten cents in two figures: `$0.0042`."""
    if usd >= 1000:
        return f"${usd:,.0f}"
    places = 2 if usd >= 0.095 or usd < 1e-6 else 1 - floor(log10(usd))
    return f"${usd:.{places}f}"


def format_loss(value: float | None) -> str:
    """Format a loss as `4.357`, or a dash if there is none or it is not finite."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.3f}"


def format_percent(share: float, decimals: int = 1) -> str:
    """Format a measured share: `12.3%`."""
    return f"{share:.{decimals}%}"


# A time that is this many times the planned one, or less than one over it, is said as a multiple.
FAR_FROM_PLAN = 2.0


def format_change(ratio: float) -> str:
    """Format a value over another of the same kind: `+12%`, `-8%`, and from twice on `5.3 ×`."""
    if _is_far(ratio):
        return f"{round_to_two_figures(ratio)} ×"
    return f"{ratio - 1:+.0%}"


def format_against_plan(ratio: float) -> str:
    """Say how a time compares with the planned one, by their ratio: `12% slower than planned`, and
    from twice or half on `5.3 × the planned time`.
    """
    if _is_far(ratio):
        return f"{round_to_two_figures(ratio)} × the planned time"
    return f"{abs(ratio - 1):.0%} {'slower' if ratio > 1 else 'faster'} than planned"


def format_slowdown(ratio: float) -> str:
    """Say how much longer one time is than another, by their ratio: `12% slower`, `5.3 × as
    long`.
    """
    if _is_far(ratio):
        return f"{round_to_two_figures(ratio)} × as long"
    return f"{abs(ratio - 1):.0%} {'slower' if ratio >= 1 else 'faster'}"


def _is_far(ratio: float) -> bool:
    return ratio >= FAR_FROM_PLAN or ratio <= 1 / FAR_FROM_PLAN


def format_three_digits(value: float) -> str:
    """Format a value of 1 or more in three digits: `1.20`, `35.1`, `4,200`."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def plural(number: int, noun: str) -> str:
    """Return `1 rank` or `8 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# Predicted values: fewer figures, because the plan has an error of some per cent

# (unit, size in base units, least number of units); the first unit that is small enough is used.
Units = tuple[tuple[str, float, float], ...]
TIMES: Units = (
    ("days", 86400.0, 1.5),
    ("h", 3600.0, 1.5),
    ("min", 60.0, 2.0),
    ("s", 1.0, 1.0),
    ("ms", 0.001, 0.0),
)
MASSES: Units = (("t", 1000.0, 1.0), ("kg", 1.0, 0.1), ("g", 0.001, 0.0))
MONEY: Units = (("million USD", 1e6, 1.0), ("USD", 1.0, 0.0))
ENERGIES: Units = (("GWh", 1e6, 1.0), ("MWh", 1e3, 1.0), ("kWh", 1.0, 0.1), ("Wh", 0.001, 0.0))


def format_predicted(value: float, units: Units) -> str:
    """Format a predicted value in the unit that suits it: `2.1 days`, `840 kWh`."""
    name, size = unit_for(value, units)
    return f"{round_to_two_figures(value / size)} {name}"


def format_predicted_range(value: float, low: float, high: float, units: Units) -> str:
    """Format a predicted range as `1.9–2.4 days`.

    The unit is that of `value`. The lower end has two figures, or more where both ends would
    otherwise look the same.
    """
    name, size = unit_for(value, units)
    low, high = low / size, high / size
    places = 1 - floor(log10(low))
    if _fixed(low, places) == _fixed(high, places):
        places += 1
    return f"{_fixed(low, places)}–{_fixed(high, places)} {name}"


def format_predicted_time(seconds: float) -> str:
    """Format a predicted time in the unit that suits it: `38 s`, `4.2 h`, `187 days`."""
    return format_predicted(seconds, TIMES)


def format_predicted_times(middle_s: float, low_s: float, high_s: float) -> str:
    """Format a predicted time and its range, each in the unit that suits it: `4.2 h (3.9–4.6 h)`,
    `2.1 min (58 s–5.2 min)`.
    """
    middle, low, high = (format_predicted_time(s) for s in (middle_s, low_s, high_s))
    if low.split(" ")[1] == high.split(" ")[1]:
        low = low.split(" ")[0]
    return f"{middle} ({low}–{high})"


def round_to_two_figures(value: float) -> str:
    """Round to two figures, or three where the first is a 1: `2.1`, `0.86`, `154`, `1,230`."""
    return _trimmed(_fixed(value, _places(value)))


def _places(value: float) -> int:
    """Return the decimals that make two figures, or three where the first is a 1."""
    if value <= 0:
        return 0
    first = floor(log10(value))
    return (2 if value / 10.0**first < 2 else 1) - first


def _fixed(value: float, places: int) -> str:
    return f"{round(value, places):,.{max(0, places)}f}"


def _trimmed(figure: str) -> str:
    return figure.rstrip("0").rstrip(".") if "." in figure else figure


def unit_for(value: float, units: Units) -> tuple[str, float]:
    """Return the name and the size of the unit that suits a value."""
    return next((n, size) for n, size, least in units if value >= least * size or least == 0)


# Colours


@dataclass(frozen=True)
class Colour:
    """One meaning on light paper, on dark paper and in a terminal of 16 colours."""

    light: str
    dark: str
    terminal: str


# By the values of `ledger.causes.Cause`, in its order. Work is green, the network blue, waiting
# yellow and orange, what failures cost red.
CAUSE_COLOURS = {
    "compute": Colour("#12866f", "#2bb091", "green"),
    "communicate": Colour("#2f7fd1", "#4f9df0", "blue"),
    "bubble": Colour("#86bdea", "#9ccbf5", "cyan"),
    "peer_wait": Colour("#dda000", "#f0b429", "magenta"),
    "data_wait": Colour("#e8710a", "#ff922b", "yellow"),
    "checkpoint": Colour("#8458c9", "#a98be8", "bright_blue"),
    "evaluate": Colour("#c270c7", "#dd9be2", "bright_cyan"),
    "startup": Colour("#6f8196", "#7f92a8", "bright_black"),
    "down": Colour("#d92d2d", "#ff5c5c", "red"),
    "redo": Colour("#9c1f4e", "#e0558b", "bright_red"),
    "unexplained": Colour("#b4bcc4", "#56626d", "white"),
}
# How good or bad a line, a status or an event is, in the terminal.
LEVEL_STYLES = {
    "good": "green",
    "active": "cyan",
    "warning": "yellow",
    "bad": "red",
    "dim": "dim",
    "plain": "",
}
STATUS_LEVELS = {
    "done": "good",
    "stopped early": "good",
    "running": "active",
    "stopped": "warning",
    "left": "warning",
    "new": "dim",
    "failed": "bad",
    "killed": "bad",
}


def cause_variables() -> str:
    """Return a style sheet with one variable for each cause, for a page with a theme switch."""
    lines = (f"  --{c}: light-dark({v.light}, {v.dark});" for c, v in CAUSE_COLOURS.items())
    return "\n".join((":root {", *lines, "}", ""))


def cause_classes() -> str:
    """Return CSS classes `c-CAUSE` for a report or a picture, light or dark as the reader's screen.

    Without `light-dark()`, which viewers of SVG files do not know.
    """

    def rules(dark: bool) -> Iterator[str]:
        for cause, colour in CAUSE_COLOURS.items():
            shade = colour.dark if dark else colour.light
            yield f".c-{cause} {{ fill: {shade}; background: {shade}; }}"

    return "\n".join(
        (*rules(False), "@media (prefers-color-scheme: dark) {", *rules(True), "}", "")
    )
