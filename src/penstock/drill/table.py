"""The table of a session: line by line for a terminal, whole for a document."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLUMNS = (
    "fault", "detected by", "detection s", "recovery s", "redone", "lost", "doubled", "weights",
)  # fmt: skip
# Where an event of the journal comes from.
BY = {
    "asked_to_stop": "signal",
    "batch_skipped": "sentinel",
    "checkpoint_rejected": "hash of a file",
    "ended": "checksum of data",
    "fault": "exit of a rank",
    "hang": "pulse stands still",
    "host_leaves": "signal",
    "host_lost": "line to the host",
    "invocation": "next start",
    "late_round": "number of a round",
    "lost": "exit of a rank",
    "place_unreachable": "failed request",
    "replanned": "error of a rank",
    "replicas_differ": "hash of weights",
    "save_failed": "failed save",
    "site_refused": "signature",
    "straggler": "times of steps",
    "took_over": "lease",
}
_WIDTHS = (18, 19, 11, 10, 6, 4, 7, 7)
_NUMBERS = range(2, 7)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of a verdict, which is given as in JSON."""
    if row["skipped"]:
        return [row["fault"], f"left out: {row['skipped']}"]
    return [
        row["fault"],
        BY.get(row["detected_by"], row["detected_by"]) or "–",
        _seconds(row["detection_s"]),
        _seconds(row["recovery_s"]),
        str(row["steps_redone"]),
        str(row["lost"]),
        str(row["doubled"]),
        row["weights"],
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def line(texts: Sequence[str], verdict: str = "") -> str:
    """Return a line with columns of fixed width, so that lines printed one by one align."""
    if len(texts) < len(COLUMNS):
        return f"{texts[0]:<{_WIDTHS[0]}} {' '.join(texts[1:])}"
    padded = [
        text.rjust(width) if i in _NUMBERS else text.ljust(width)
        for i, (text, width) in enumerate(zip(texts, _WIDTHS, strict=True))
    ]
    return " ".join([*padded, verdict]).rstrip()


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the same table in Markdown."""
    sides = ["---:" if i in _NUMBERS else "---" for i in range(len(COLUMNS))]
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'|'.join(sides)}|"]
    for row in rows:
        own = cells(row)
        lines.append(f"| {' | '.join(own + [''] * (len(COLUMNS) - len(own)))} |")
    return "\n".join(lines) + "\n"
