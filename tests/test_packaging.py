"""What the wheel carries and asks for. `make test-install` tries a real one; this takes no time."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def plain(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def constraints() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(line) for line in lines if not line.startswith("#")}


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    package = ROOT / "src" / "penstock"
    there = {path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    carried = set(package.rglob("*.py")) | {package / "py.typed"}  # setuptools takes these itself
    for name, patterns in PROJECT["tool"]["setuptools"]["package-data"].items():
        folder = ROOT / "src" / name.replace(".", "/")
        for pattern in patterns:
            carried |= set(folder.glob(pattern))
    assert there - carried == set()
    for file in PROJECT["project"]["license-files"]:
        assert (ROOT / file).is_file()


def test_every_requirement_has_a_tested_version() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = PROJECT["project"]["dependencies"] + [one for extra in extras.values() for one in extra]
    assert {plain(one) for one in asked} - {"penstock"} <= constraints()
    # MLflow's server does not install beside the others: its script names the version.
    assert re.search(r"\bmlflow==[\d.]+", (ROOT / "scripts" / "mlflow.sh").read_text())


def test_no_interactive_python_comes_along() -> None:
    """The charts' files once came with a package that brought IPython: 15 packages, 35 MB.

    The tests alone have it, for the notebook.
    """
    extras = PROJECT["project"]["optional-dependencies"]
    todo = [*PROJECT["project"]["dependencies"]]
    todo += [one for name, extra in extras.items() if name != "dev" for one in extra]
    needed: set[str] = set()
    while todo:
        asked = Requirement(todo.pop())
        if plain(asked.name) in needed:
            continue
        needed.add(plain(asked.name))
        try:
            inner = map(Requirement, metadata.requires(asked.name) or [])
        except metadata.PackageNotFoundError:  # of another system
            continue
        extra = [{"extra": name} for name in ("", *asked.extras)]
        todo += [
            str(one) for one in inner if not one.marker or any(map(one.marker.evaluate, extra))
        ]
    assert {"torch", "pillow", "starlette"} <= needed
    assert not needed & {"ipython", "jedi", "uplot-python", "prompt-toolkit"}
