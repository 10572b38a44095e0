"""What ranks find of earlier starts: compiled layers, and bytecode where torch has none."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from penstock.launch.supervisor import environment
from penstock.launch.supervisor.fork_client import ForkClient

TOLD = """
import json
from penstock.launch.supervisor import environment
print(json.dumps(environment.for_fork_server(1)))
"""


def test_compiled_layers_are_kept_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    # As a process that has compiled something finds it.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    env = environment.for_fork_server(1)
    folder = tmp_path / "home/compiled"
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).parent == folder
    assert Path(env["TRITON_CACHE_DIR"]).parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")  # the user's own word counts
    assert environment.for_fork_server(1)["TRITON_CACHE_DIR"] == "/elsewhere"


def told(site: Path, home: Path, **env: str) -> dict[str, str]:
    """Return the environment as a process with another torch sees it."""
    path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    own |= {"PYTHONPATH": path, "PENSTOCK_HOME": str(home)} | env
    said = subprocess.check_output([sys.executable, "-c", TOLD], env=own)
    return dict(json.loads(said))


def test_bytecode_is_kept_where_torch_cannot_keep_its_own(tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "home"
    (site / "torch").mkdir(parents=True)
    (site / "torch/__init__.py").write_text("cuda = None\n")
    assert "PYTHONPYCACHEPREFIX" not in told(site, home)  # Python keeps it itself
    assert "PYTHONPYCACHEPREFIX" not in told(
        site, home, PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path / "own")
    )
    env = told(site, home, PYTHONDONTWRITEBYTECODE="1")
    assert env["PYTHONPYCACHEPREFIX"] == str(home / "compiled/python")

    (site / "heavy.py").write_text("x = 1\n")
    path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    client = ForkClient(env | {"PYTHONPATH": path}, modules=["heavy"])
    deadline = time.monotonic() + 60
    while not client.ready:
        assert not client.lost
        assert time.monotonic() < deadline
        client.wait(0.1)
    client.close()
    assert list((home / "compiled/python").rglob("heavy.*.pyc"))
    assert not list(site.rglob("*.pyc"))
