"""The house: imports go down the list of rooms, and the light rooms never import torch."""

import ast
import subprocess
import sys
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
LIGHT = ["catalog", "run", "ledger", "policy", "plan"]
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The rooms a file imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    return {p[1] for p in parts if p[0] == "penstock" and len(p) > 1 and p[1] in ROOMS}


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


def test_every_room_is_known_and_two_levels_deep() -> None:
    found = {room(path) for path in FILES} - {None}
    assert found <= set(ROOMS)
    deep = [p for p in FILES if len(p.relative_to(SOURCE).parts) > 2]
    assert not deep


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
