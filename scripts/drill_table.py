"""Puts the measured tables of drills into docs/faults.md: `python scripts/drill_table.py`.

Each table stands between `<!-- drills: NAME -->` and `<!-- end -->` and is made from
docs/drills/NAME.jsonl, which is what `penstock drill --json` printed. Of a fault that was drilled
several times the medians are shown.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from penstock.drill.table import markdown

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- drills: {} -->\n", "<!-- end -->\n"
TIMES = ("detection_s", "recovery_s", "steps_redone")
SUMS = ("lost", "doubled")


def one_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The drills of one fault as one line."""
    row = dict(rows[0])
    for name in TIMES:
        known = [one[name] for one in rows if one[name] is not None]
        row[name] = median(known) if known else None
    row["steps_redone"] = round(row["steps_redone"] or 0)
    for name in SUMS:
        row[name] = sum(one[name] for one in rows)
    row["weights"] = " or ".join(dict.fromkeys(one["weights"] for one in rows))
    row["fault"] = row["what"] + (f" (× {len(rows)})" if len(rows) > 1 else "")
    return row


def campaigns(rows: list[dict[str, Any]]) -> str:
    """Many random faults: how they ended, in two lines."""
    times = sorted(row["recovery_s"] for row in rows if row["recovery_s"] is not None)
    blows = sum(len(row["blows"]) for row in rows)
    equal = sum(row["weights"] == "equal" for row in rows)
    lost, doubled = (sum(row[name] for row in rows) for name in SUMS)
    passed = sum(row["passed"] for row in rows)
    return (
        f"{len(rows)} campaigns with {blows} faults: {passed} passed, {equal} with bit-identical "
        f"weights; {lost} samples lost, {doubled} doubled. Recovery from the first fault: median "
        f"{median(times):.2f} s, at most {times[-1]:.2f} s.\n"
    )


def section(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if all(row["fault"].startswith("seed-") for row in rows):
        return campaigns(rows)
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_fault[row["fault"]].append(row)
    return markdown(one_row(rows) for rows in by_fault.values())


def main() -> None:
    page = DOCS / "faults.md"
    text = page.read_text()
    for path in sorted((DOCS / "drills").glob("*.jsonl")):
        begin = BEGIN.format(path.stem)
        if begin not in text:
            sys.exit(f"{page} has no line {begin.strip()}: add one, with {END.strip()} below it")
        head, rest = text.split(begin, 1)
        text = head + begin + section(path) + END + rest.split(END, 1)[1]
        failed = [
            row for row in map(json.loads, path.read_text().splitlines()) if not row["passed"]
        ]
        for row in failed:
            print(f"{path.name}: {row['fault']} failed: {'; '.join(row['why'])}", file=sys.stderr)
    page.write_text(text)


if __name__ == "__main__":
    main()
