"""One Ray cluster for all tests here."""

from collections.abc import Iterator

import pytest

import ray_lab
from ray_lab import RayLab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayLab]:
    """Three nodes; a fourth host is there for nodes that are wrong."""
    if lacking := ray_lab.missing():
        pytest.fail(
            f"not here: {lacking}. Run as root, with the extra `ray` and apt-get install iproute2 "
            "ceph-mon ceph-osd radosgw ceph-common"
        )
    with RayLab(tmp_path_factory.mktemp("lab"), hosts=4) as lab:
        yield lab
