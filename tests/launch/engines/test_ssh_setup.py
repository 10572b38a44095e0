"""`penstock train --setup` on a host behind real sshd: a venv from nothing, with a network.

Run with `make test-ssh`. pip needs its index, so this sshd listens on loopback, outside of any
namespace. It installs torch: minutes, and about 2 GB, which are deleted again.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock import __version__
from ssh_lab import SSHD, missing

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def config(tmp_path: Path, home: Path) -> Iterator[Path]:
    """An sshd on loopback; the configuration by which ssh reaches it as `box`."""
    if why := missing():
        pytest.skip(why)
    index = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path / "w"]
    if subprocess.run([*index, "wheel"], capture_output=True).returncode:
        pytest.skip("pip reaches no index from here")
    Path("/run/sshd").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("key", "host_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(words, check=True)
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/key.pub\nStrictModes no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        f"SetEnv PENSTOCK_HOME={home}\n"  # where the datasets of the tests are
    )
    known = (tmp_path / "host_key.pub").read_text().split()
    (tmp_path / "known").write_text(f"box {known[0]} {known[1]}\n")
    file = tmp_path / "ssh_config"
    file.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias box\n  User root\n"
        f"  IdentityFile {tmp_path}/key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  GlobalKnownHostsFile /dev/null\n"
    )
    with (tmp_path / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], stdout=log, stderr=log
        )
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < until, (tmp_path / "sshd.log").read_text()
            time.sleep(0.05)
    yield file
    server.terminate()
    server.wait()
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3000)


@pytest.mark.usefixtures("cold")
def test_setup_makes_the_venv_and_the_run_starts_there(
    tmp_path: Path, config: Path, run_file: Callable[..., Path]
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    file = run_file(
        "prepared",
        **{
            "cluster.launcher": "ssh",
            "cluster.accelerators": 1,
            "cluster.ssh.hosts": ["box"],
            "cluster.ssh.config": str(config),
            "cluster.ssh.python": str(python),
            "train.steps": 5,
        },
    )
    before = penstock(tmp_path, "train", str(file))
    assert before.returncode == 2
    assert "cluster.ssh.python" in before.stderr
    assert not python.exists(), "nothing is installed without being asked for"

    done = penstock(tmp_path, "train", str(file), "--setup", "--json")
    assert "box: makes a venv in" in done.stderr
    assert "box: is ready" in done.stderr, done.stderr
    code = "import penstock, torch; print(penstock.__version__, torch.__version__)"
    there = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env={}, check=True
    ).stdout.split()
    assert there[0] == __version__
    assert there[1].partition("+")[0] == version("torch").partition("+")[0]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "done"

    again = penstock(tmp_path, "train", str(file), "--setup")
    assert "nothing to install" in again.stderr
