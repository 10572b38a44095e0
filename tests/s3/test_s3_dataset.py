"""Datasets in a real object store, through outages, cuts and damage."""

import itertools
import threading

import numpy as np
import obstore
import pytest

from cutting_proxy import cutting
from penstock.data.build import copy as remote_copy
from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.format.shard_file import BadBlock
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.read.feed import Feed
from penstock.data.read.stream import Stream
from penstock.data.store import objects
from penstock.data.store.cache import Cache
from penstock.data.store.objects import Store
from penstock.errors import PenstockError, RunFailed

pytestmark = pytest.mark.s3
HALF = BLOCK_BYTES // 2  # tokens in a block
BLOCKS = 24


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path_factory.mktemp("home"), "far", 1 << 16, b"{}", 8 << 20) as writer:
        for _ in range(BLOCKS):
            writer.add(rng.integers(0, 1 << 16, HALF))
        return Dataset.open(writer.finish({}, {}, {}))


@pytest.fixture
def url(s3, local):
    return remote_copy.copy_dataset(local, "s3://data/sets")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", 64 << 20)


def all_batches(dataset: Dataset, steps: int) -> list[np.ndarray]:
    """What a run reads, through the real stream and feed."""
    stream = Stream(dataset, 2048, seed=3, holdout=0.01)
    feed = Feed(stream, ((8 * k, 8 * k + 8) for k in range(steps)))
    batches = [feed.next().tokens for _ in range(steps)]
    feed.close()
    dataset.close()
    return batches


def test_a_run_reads_what_it_would_read_from_disk(url, local, cache):
    far = all_batches(Dataset.open(url, cache), 200)
    assert all(itertools.starmap(np.array_equal, zip(far, all_batches(local, 200), strict=True)))
    assert Dataset.open(url, cache).verify() == []


def test_a_shard_damaged_in_the_bucket(s3, url, local, cache):
    shard = local.manifest.shards[1]
    name = f"shards/{shard.blake3}.bin"
    content = bytearray((local.folder / name).read_bytes())
    content[5] ^= 1
    Store(url).put(name, bytes(content))
    try:
        far = Dataset.open(url, cache)
        first = local.manifest.shards[0].tokens
        with pytest.raises(BadBlock) as caught:
            far.crops(np.array([0, first - 5, first + HALF]), 10)
        assert caught.value.file == f"{url}/{name}"
        assert caught.value.starts.tolist() == [first - 5]
        assert len(far.verify()) == 1
    finally:
        Store(url).put(name, local.folder / name)


# Before the gateway is killed: Ceph waits long for a dead one to hear of such a change.
def test_credentials_that_run_out_in_mid_run(s3, url, local, cache):
    far = Dataset.open(url, cache)
    far.read(0, 10)
    s3.do("refuse")
    try:
        refused = r"access was refused \(UserSuspended\).*have expired.*goes on where it was"
        with pytest.raises(RunFailed, match=refused):
            far.read(0, far.tokens)
    finally:
        s3.do("accept")
    assert np.array_equal(far.read(0, far.tokens), local.read(0, local.tokens))


def test_connections_cut_in_mid_read(s3, url, local, cache, monkeypatch):
    with cutting("127.0.0.1", s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        far = Dataset.open(url, cache)
        proxy.after_bytes, proxy.cuts = 300_000, 6
        assert np.array_equal(far.read(0, far.tokens), local.read(0, local.tokens))
        assert proxy.cut == 6


def test_a_server_that_dies_and_comes_back(s3, url, local, cache):
    far = Dataset.open(url, cache)
    stream = Stream(far, 2048, seed=3, holdout=0.01)
    feed = Feed(stream, ((8 * k, 8 * k + 8) for k in range(400)))
    first = feed.next().tokens
    s3.do("kill")
    back = threading.Timer(2.0, s3.do, ("again",))
    back.start()
    rest = [feed.next().tokens for _ in range(399)]
    back.join()
    feed.close()
    far.close()
    near = all_batches(local, 400)
    assert all(itertools.starmap(np.array_equal, zip([first, *rest], near, strict=True)))


def test_a_server_that_stays_away(s3, url, cache, monkeypatch):
    monkeypatch.setattr(objects.Store.__init__, "__defaults__", (2.0,))
    far = Dataset.open(url, cache)
    s3.do("kill")
    try:
        with pytest.raises(RunFailed, match=r"was tried for 2 s.*goes on where it was"):
            far.read(0, 10)
        with pytest.raises(PenstockError, match="cannot be opened"):
            Dataset.open(url, cache)
    finally:
        s3.do("again")


@pytest.mark.parametrize("what", ["deleted", "cut short", "replaced"])
def test_an_object_that_is_lost_in_mid_run(s3, url, local, cache, what):
    """The samples that need it are skipped, all others are what they were; or the run stops."""
    shard = local.manifest.shards[2]
    name, store = f"shards/{shard.blake3}.bin", Store(url)
    far = Dataset.open(url, cache)
    far.read(0, 10)
    if what == "deleted":
        obstore.delete(store._inner, f"{store._prefix}/{name}")
    else:
        store.put(name, b"" if what == "cut short" else bytes(shard.bytes))
    try:
        skipping, stopping = (Stream(far, 2048, 3, 0.01, skip=skip) for skip in (True, False))
        batch = skipping.read(0, skipping.samples)
        with pytest.raises(BadBlock, match="fetched twice") as caught:
            stopping.read(0, stopping.samples)
    finally:
        store.put(name, local.folder / name)
    assert caught.value.file == f"{url}/{name}"
    assert {one.file for one in batch.skipped} == {f"{url}/{name}"}
    assert len(batch.skipped) == shard.blocks
    good = batch.loss.any(axis=1)
    assert 0.6 < good.mean() < 0.7  # one of three shards, and the samples across its borders
    near = Stream(local, 2048, seed=3, holdout=0.01).read(0, skipping.samples)
    assert np.array_equal(batch.tokens[good], near.tokens[good])


def test_wrong_credentials_and_missing_buckets(s3, url, cache, monkeypatch):
    with pytest.raises(PenstockError, match="no such object or bucket"):
        Dataset.open("s3://nowhere/sets/a@1", cache)
    with pytest.raises(PenstockError, match="no such object or bucket"):
        Dataset.open("s3://data/nowhere", cache)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PenstockError, match=r"access was refused.*AWS_SECRET_ACCESS_KEY"):
        Dataset.open(url, cache)
