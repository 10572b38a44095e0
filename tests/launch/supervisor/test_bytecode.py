"""Bytecode in a folder of Penstock's home: the command's own, and what is compiled ahead."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.launch.supervisor import bytecode

KEEPS = """
import json, sys
from penstock.launch.supervisor import bytecode, environment
before = environment.for_fork_server(1)
bytecode.keep_in(before[environment.BYTECODE])
import heavy
print(json.dumps([before, environment.for_fork_server(1)]))
"""


def test_the_command_keeps_bytecode_where_its_server_does(tmp_path: Path) -> None:
    """And the server of the launch needs the same environment as the one that started early."""
    site, home = tmp_path / "site", tmp_path / "home"
    (site / "torch").mkdir(parents=True)
    (site / "torch/__init__.py").write_text("cuda = None\n")
    (site / "heavy.py").write_text("x = 1\n")
    path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    own |= {"PYTHONPATH": path, "PENSTOCK_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.check_output([sys.executable, "-c", KEEPS], env=own)
    before, after = json.loads(said)
    assert after == before
    assert list((home / "compiled/python").rglob("heavy.*.pyc"))
    assert not list(site.rglob("*.pyc"))


def test_large_packages_are_compiled_ahead_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large/testing").mkdir(parents=True)
    for name in ("__init__", "part", "testing/unused"):
        (tmp_path / f"large/{name}.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(bytecode, "PACKAGES", ("large", "not_there"))
    folder = tmp_path / "kept"
    ahead = bytecode.CompileAhead(str(folder), bytecode.LEAST_CORES)
    deadline = time.monotonic() + 60
    while ahead.running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    made = folder.rglob("large/**/*.pyc")
    assert {path.name.partition(".")[0] for path in made} == {"__init__", "part"}
    ahead.close()
    assert not bytecode.CompileAhead(str(folder), bytecode.LEAST_CORES).running  # there is some


def test_few_cores_are_left_to_the_imports(tmp_path: Path) -> None:
    assert not bytecode.CompileAhead(str(tmp_path / "kept"), bytecode.LEAST_CORES - 1).running


def test_what_compiles_ahead_ends_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "PACKAGES", ("sympy",))  # takes seconds
    ahead = bytecode.CompileAhead(str(tmp_path / "kept"), bytecode.LEAST_CORES)
    assert ahead.running
    ahead.close()
    assert not ahead.running
