"""The house: imports go down the list of rooms and of sub-rooms; light rooms never import torch."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "penstock"
# Upper rooms may import lower ones. `errors` and the package itself stand below all rooms.
ROOMS = [
    "cli",
    "drill",
    "watch",
    "launch",
    "train",
    "simulate",
    "guard",
    "plan",
    "data",
    "model",
    "policy",
    "meter",
    "ledger",
    "run",
    "catalog",
]
# Inside a room, sub-rooms from the top down; "." are the files that lie in the room itself.
SUBROOMS = {
    "watch": ["terminal", "web", "report", "outlets", "datasets", "facts", "style"],
    "launch": [".", "doctor", "engines", "ssh", "hosts", "supervisor", "prepare"],
    "train": [".", "tasks", "export", "sites", "replicas", "codecs", "optim", "parallel", "world"],
    "simulate": ["compare", "rent", "."],
    "guard": ["convert", ".", "save", "tiers", "format", "detect"],
    "plan": [
        "scaling",
        "within",
        ".",
        "backtest",
        "search",
        "hours",
        "life",
        "memory",
        "step",
        "cost",
        "power",
        "job",
        "hardware",
    ],
    "data": [
        "build",
        "recipe",
        "label",
        "dedup",
        "clean",
        "chat",
        "tokenize",
        "sources",
        "workers",
        "read",
        "format",
        "store",
    ],
    "model": ["adapter", "open", ".", "kernels"],
    "policy": [".", "hours"],
    "ledger": [".", "journal"],
    "run": ["clusters", ".", "schema"],
    "catalog": ["open", "."],
}
MOST_FILES = 25  # in one folder
# All of data/ that a rank imports; a tokenizer, since it writes samples of what the model says.
RANK_READS = ("read", "format", "store", "tokenize.tokenizer", "tokenize.special")
LIGHT = ["catalog", "run", "ledger", "policy", "plan", "simulate"]
FILES = sorted(SOURCE.rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    """Return all that a file imports, wherever in the file it does so, with dots."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """Return the rooms that a file imports."""
    parts = [name.split(".") for name in imported_names(path)]
    return {p[1] for p in parts if p[0] == "penstock" and len(p) > 1 and p[1] in ROOMS}


def imported_subrooms(path: Path, here: str) -> set[str]:
    """Return the sub-rooms of its own room that a file imports."""
    parts = [name.split(".") for name in imported_names(path)]
    inside = [p for p in parts if p[:2] == ["penstock", here] and len(p) > 2]
    return {p[2] if p[2] in SUBROOMS[here] else "." for p in inside}


def room(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    here = room(path)
    if here is None:
        return  # the package's own face may use every room
    upward = {name for name in imported(path) if ROOMS.index(name) < ROOMS.index(here)}
    assert not upward, f"{path} is in {here}/ and imports {upward}, which stands above it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down_inside_a_room(path: Path) -> None:
    here = room(path)
    if here not in SUBROOMS or path.name == "__init__.py":
        return
    order = SUBROOMS[here]
    own = subroom(path)
    upward = {n for n in imported_subrooms(path, here) if order.index(n) < order.index(own)}
    assert not upward, f"{path} is in {here}/{own} and imports {upward}, which stands above it"


def subroom(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[1] if len(parts) > 2 else "."


def test_every_room_and_sub_room_is_known_and_none_is_deeper() -> None:
    assert {room(path) for path in FILES} - {None} <= set(ROOMS)
    assert max(len(path.relative_to(SOURCE).parts) for path in FILES) == 3
    found: dict[str, set[str]] = {}
    for path in FILES:
        if path.name != "__init__.py" and (here := room(path)):
            found.setdefault(here, set()).add(subroom(path))
    assert {here: subs for here, subs in found.items() if subs != {"."}} == {
        here: set(order) for here, order in SUBROOMS.items()
    }


def test_no_folder_is_too_full_to_read() -> None:
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {folder: n for folder, n in counts.items() if n > MOST_FILES} == {}


def test_every_sub_room_says_what_is_in_it() -> None:
    for here, order in SUBROOMS.items():
        for sub in set(order) - {"."}:
            assert ast.get_docstring(ast.parse((SOURCE / here / sub / "__init__.py").read_text()))


def test_a_rank_imports_nothing_of_building_a_dataset() -> None:
    code = (
        "import sys, penstock.train.rank\n"
        "print(*(m for m in sys.modules if m.startswith('penstock.data.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    below = tuple(f"penstock.data.{name}" for name in RANK_READS)
    loaded = set(done.stdout.split()) - {"penstock.data.tokenize"}
    assert [name for name in loaded if not name.startswith(below)] == []


def test_nothing_that_predicts_imports_the_backtest() -> None:
    """Measured runs judge the planner; a prediction that read them would judge itself."""
    own = SOURCE / "plan" / "backtest"
    users = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if own not in path.parents
        and any(name.startswith("penstock.plan.backtest") for name in imported_names(path))
    }
    assert {user for user in users if not user.startswith("cli/backtest")} == set()


def test_the_checker_sees_an_upward_import(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from penstock.train.loop import fit\n")
    assert imported(file) == {"train"}


def test_light_rooms_and_the_reading_side_never_import_torch() -> None:
    modules = [
        ".".join(["penstock", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in FILES
        if room(path) in LIGHT or room(path) in ("watch", "cli")
    ]
    code = (
        "import sys\n" + "".join(f"import {m}\n" for m in modules) + "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
