"""A real S3 server: Ceph RGW, started once for the tests that ask for it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "ceph.sh"


class Server:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "penstock-secret",
            "AWS_REGION": "us-east-1",
        }

    def do(self, verb: str, *more: str) -> None:
        subprocess.run([SCRIPT, verb, self.folder, *more], check=True, timeout=120)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    for needed in ("ceph-mon", "ceph-osd", "radosgw", "ceph"):
        if not shutil.which(needed):
            pytest.fail(
                f"{needed} is not installed: apt-get install ceph-mon ceph-osd radosgw ceph-common"
            )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = Server(tmp_path_factory.mktemp("ceph") / "c", min(port, 60_000))
    try:
        found.do("start", "127.0.0.1", str(found.port))
        found.do("bucket", "data")
        yield found
    finally:
        found.do("stop")


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return server
