"""Puts the worked example into docs/compare.md and its picture beside it.

`python scripts/compare_page.py`: compares the clusters of examples/compare for its run, and writes
the table, the choice, the flips and the break-evens between `<!-- compare: 7b-1t -->` and
`<!-- end -->`, and docs/pictures/compare-7b.svg.
"""

import os
from pathlib import Path

import penstock
from penstock.simulate.compare import picture, screen
from penstock.simulate.compare.compare import ClusterComparison

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compare.md"
PICTURE = ROOT / "docs" / "pictures" / "compare-7b.svg"
BEGIN, END = "<!-- compare: 7b-1t -->\n", "<!-- end -->\n"
CLUSTERS = ("h100-owned", "h100-reserved", "a100-spot", "gb200-colo", "rtx5090-own")
START, DEADLINE = "2026-12-01", "200 days"
COMMAND = (
    "penstock compare run.toml --start {start} --deadline {deadline!r} --clusters \\\n  {clusters}"
)


def compared() -> ClusterComparison:
    """Compare the clusters of the example."""
    folder = ROOT / "examples" / "compare"
    names = [os.path.relpath(folder / f"{name}.toml") for name in CLUSTERS]
    return penstock.compare(folder / "run.toml", names, start=START, deadline=DEADLINE)


def block(found: ClusterComparison) -> str:
    """Return what stands between the marks."""
    files = ",".join(f"{name}.toml" for name in CLUSTERS)
    command = COMMAND.format(start=START, deadline=DEADLINE, clusters=files)
    said = "\n".join(line for line in screen.lines(found))
    parts = [
        f"```\n{command}\n```",
        screen.markdown(found),
        f"![Days against USD of five clusters](pictures/{PICTURE.name})",
        f"```\n{said}\n```",
    ]
    return "\n\n".join(parts) + "\n\n"


def main() -> None:
    found = compared()
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + block(found) + END + after)
    PICTURE.write_text(picture.svg(found))


if __name__ == "__main__":
    main()
