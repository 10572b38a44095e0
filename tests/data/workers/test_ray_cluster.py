"""Mistakes with `--on` and `--to` that show without a cluster; the others are in tests/on_ray."""

import sys
from pathlib import Path

import pytest

from penstock.cli.data import refuse_wrong_options
from penstock.data.build.on_ray import start_on_ray
from penstock.data.build.progress import SilentWatcher
from penstock.data.workers import ray_cluster
from penstock.data.workers.installed import PENSTOCK, difference, versions
from penstock.data.workers.ray_cluster import cluster_address, connect
from penstock.errors import PenstockError


@pytest.mark.parametrize("on", ["spark", "ray://", "ray://head", "10.0.0.1:6379", "ray:/x:1"])
def test_what_is_no_cluster(on: str) -> None:
    with pytest.raises(PenstockError, match=f"--on '{on}': not a cluster"):
        cluster_address(on)


def test_the_address_is_that_of_the_option_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster_address("ray") == "10.0.0.1:6379"
    assert cluster_address("ray://head.example:10001") == "ray://head.example:10001"
    monkeypatch.delenv("RAY_ADDRESS")
    assert cluster_address("ray") == "auto"


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PenstockError, match=r"Building on Ray needs ray.*'penstock\[ray\]'"):
        start_on_ray("ray", SilentWatcher())


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:99999"])
def test_nothing_listens_at_the_address(address: str) -> None:
    with pytest.raises(PenstockError, match=f"No Ray cluster answers at {address}: .*Check host"):
        connect(address)


def test_other_versions_are_named() -> None:
    here = versions()
    assert difference(here, dict(here)) == ""
    there = {**here, "tokenizers": "0.0.1"}
    assert difference(here, there) == f"tokenizers 0.0.1 there and {here['tokenizers']} here"
    assert f"{PENSTOCK} None there" in difference(here, {})


def test_a_refusal_of_ray_is_told_in_words() -> None:
    """The words are those of Ray 2.60; tests/on_ray gets them from Ray itself."""
    error = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n"
        "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    told = ray_cluster._refusal("ray://head:10001", error)
    assert "has Ray 2.9.0 on Python 3.10.1; this process has Ray 2.60.0 on" in told
    assert "pip install ray==2.9.0" in told


def test_options_that_do_not_fit_together() -> None:
    with pytest.raises(PenstockError, match="--to 's3://x': only builds on a cluster"):
        refuse_wrong_options(None, "s3://x", None)
    with pytest.raises(PenstockError, match="--workers 2: on a cluster its CPUs decide"):
        refuse_wrong_options("ray", None, 2)
    with pytest.raises(PenstockError, match="a web server cannot be written to"):
        refuse_wrong_options("ray", "https://example.org/x", None)
    refuse_wrong_options("ray", "s3://x", None)
    refuse_wrong_options(None, None, 2)


def test_a_file_that_a_node_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("1234")
    asked = [(str(tmp_path / "here"), 4), (str(tmp_path / "here"), 5), (str(tmp_path / "no"), -1)]
    found, problems = ray_cluster.look_around(asked)
    assert found == versions()
    assert problems == ["", "it has 4 bytes there and 5 here", "No such file or directory"]
