"""Types every bad input of tests/bad_inputs.py and writes the answers into docs/faults.md.

    .venv/bin/python scripts/bad_inputs.py [--print]

Each is given to a fresh folder with a finished run in it. The exit code is 1 if one of them ended
in a traceback or with another exit code than expected.
"""

import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- bad inputs -->", "<!-- /bad inputs -->"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        os.environ |= {"PENSTOCK_HOME": str(here / "home"), "COLUMNS": "400"}
        rows, bad = answers(here)
    table = "\n".join(["| command | before | exit | answer |", "|---|---|---:|---|", *rows])
    print(table)
    print(f"{len(rows)} bad inputs, {bad} not answered as they should be")
    if "--print" not in sys.argv:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(bad > 0)


def answers(here: Path) -> tuple[list[str], int]:
    """Return a row of the table for each case, and how many answers were wrong."""
    import bad_inputs
    import penstock
    from made_sets import tiny_dataset

    tiny_dataset(here / "home")
    (here / "done.toml").write_text(bad_inputs.RUN_FILE.replace('"mine"', '"done"'))
    penstock.train(penstock.load(str(here / "done.toml"), f"dir={here}/runs"))
    rows, bad = [], 0
    for number, case in enumerate(bad_inputs.CASES):
        folder = here / f"case-{number}"
        bad_inputs.make_folder(folder, here / "runs")
        answer = bad_inputs.ask(case, folder)
        wrong = bool(answer.crash) or answer.code != case.code
        bad += wrong
        said = answer.crash.strip().splitlines()[-1] if answer.crash else answer.first_line
        said = said.replace(str(folder), ".").replace(str(here), "…")
        rows.append(
            f"| `{cell(shorter(case.command))}` | {case.about} | {answer.code} | "
            f"{'**' if wrong else ''}{cell(said[:160])}{'**' if wrong else ''} |"
        )
    return rows, bad


def shorter(command: str) -> str:
    words = [word if len(word) < 60 else f"{word[:20]}…" for word in shlex.split(command)]
    return shlex.join(words)


def cell(text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode()  # a letter of another encoding
    return re.sub(r"\s+", " ", shown).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
