"""A dataset behind a URL reads as the local one, whatever the link, the store or the disk do."""

import itertools
import threading
from contextlib import suppress

import numpy as np
import pytest

from made_masks import with_masks
from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.format.shard_file import BadBlock
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.data.store import objects
from penstock.data.store.cache import Cache
from penstock.data.store.planned_reads import all_planned
from penstock.errors import PenstockError, RunFailed
from range_server import serve

HALF = BLOCK_BYTES // 2  # tokens in a block


@pytest.fixture
def pair(dataset, tmp_path):
    """(local, url, faults, cache): six blocks of tokens in two shards."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 1000, 3 * HALF - 77), rng.integers(0, 1000, 3 * HALF + 33)]
    local = dataset(documents, shard_bytes=4 * BLOCK_BYTES)
    local = with_masks(local.folder, rng.integers(0, 2, local.tokens).astype(bool))
    with serve(local.folder) as (url, faults):
        yield local, url, faults, Cache(tmp_path / "cache", 64 << 20)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(objects, "PATIENCE_S", 0.5)
    monkeypatch.setattr(objects.Store.__init__, "__defaults__", (0.5, objects.ANSWER_S))


def opened(pair):
    return Dataset.open(pair[1], pair[3])


STARTS = np.array([0, HALF - 5, 2 * HALF, 4 * HALF - 7, 5 * HALF])


def test_it_equals_the_local_one(pair):
    local, url, faults, _ = pair
    far = opened(pair)
    assert far.id == local.id
    assert far.where == url
    assert far.tokenizer_json() == local.tokenizer_json()
    for length in (1, 10, HALF + 3):
        starts = STARTS[STARTS + length <= local.tokens]
        assert np.array_equal(far.crops(starts, length), local.crops(starts, length))
        assert np.array_equal(far.loss_mask(starts, length), local.loss_mask(starts, length))
        assert np.array_equal(
            far.document_marks(starts, length), local.document_marks(starts, length)
        )
    assert np.array_equal(far.read(0, local.tokens), local.read(0, local.tokens))
    assert [far.rows(k) for k in (0, 1)] == [local.rows(k) for k in (0, 1)]
    assert far.verify() == []
    assert len(set(faults.blocks())) >= 6


def test_a_block_is_fetched_once_and_then_read_from_the_cache(pair):
    local, _, faults, _ = pair
    opened(pair).crops(STARTS, 10)
    asked = len(faults.blocks())
    assert asked == len(set(faults.blocks())) == 6
    again = opened(pair)  # another process would see the same
    assert np.array_equal(again.crops(STARTS, 10), local.crops(STARTS, 10))
    assert len(faults.blocks()) == asked


def test_a_bad_block_in_the_cache_is_fetched_again(pair):
    local, _, faults, cache = pair
    opened(pair).crops(STARTS, 10)
    name = f"{local.manifest.shards[0].blake3}-1"
    path = cache.folder / "blocks" / name[:2] / name
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)
    assert np.array_equal(opened(pair).crops(STARTS, 10), local.crops(STARTS, 10))
    assert len(faults.blocks()) == 7
    content[9] ^= 1
    assert path.read_bytes() == content


@pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
def test_a_fault_that_passes_is_not_seen(pair, fault):
    local, _, faults, _ = pair
    far = opened(pair)
    far.crops(np.array([0]), 1)  # the sums of the first shard are there
    setattr(faults, fault, 1)
    assert np.array_equal(far.crops(np.array([HALF]), 10), local.crops(np.array([HALF]), 10))
    assert getattr(faults, fault) == 0


def test_a_block_that_is_bad_in_the_store_is_named_after_a_second_fetch(pair):
    local, url, faults, _ = pair
    shard = local.manifest.shards[0]
    path = local.folder / "shards" / f"{shard.blake3}.bin"
    content = bytearray(path.read_bytes())
    content[BLOCK_BYTES + 4] ^= 16
    path.write_bytes(content)
    far = opened(pair)
    for _ in range(2):
        with pytest.raises(BadBlock) as caught:
            far.crops(STARTS, 10)
        bad = caught.value
        assert bad.file == f"{url}/shards/{shard.blake3}.bin"
        assert (bad.block, bad.tokens) == (1, (HALF, 2 * HALF))
        assert bad.starts.tolist() == [HALF - 5]
    wanted = f"bytes={BLOCK_BYTES}-{2 * BLOCK_BYTES - 1}"
    assert sum(wanted in one for one in faults.asked) == 2
    assert far.crops(STARTS[[0, 2]], 10).shape == (2, 10)
    (problem,) = far.verify()
    assert f"{url}/shards/{shard.blake3}.bin has changed" in problem


@pytest.mark.usefixtures("impatient")
def test_a_link_that_stays_down_is_one_clear_error(pair):
    far = opened(pair)
    pair[2].busy = 10_000
    with pytest.raises(RunFailed, match=r"was tried for 0\.5 s.*start again"):
        far.crops(STARTS, 10)


@pytest.mark.parametrize("damage", ["deleted", "cut short", "emptied", "replaced"])
@pytest.mark.parametrize("by_file", [False, True], ids=["http", "file"])
def test_lost_content_is_skipped_like_damaged_content(pair, damage, by_file):
    local, url, faults, cache = pair
    path = local.folder / "shards" / f"{local.manifest.shards[1].blake3}.bin"
    whole = path.read_bytes()
    keep = {"cut short": BLOCK_BYTES + 10, "emptied": 0, "replaced": None}
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(bytes(len(whole)) if damage == "replaced" else whole[: keep[damage]])
    far = Dataset.open(local.folder.as_uri() if by_file else url, cache)
    whole_stream = Stream(far, 1 << 16, seed=4, holdout=0.0, skip=True)
    batch = whole_stream.read(0, whole_stream.samples)
    assert {one.block for one in batch.skipped} == ({1} if damage == "cut short" else {0, 1})
    assert {one.file for one in batch.skipped} == {f"{far.where}/shards/{path.name}"}
    good = batch.loss.any(axis=1)
    path.write_bytes(whole)
    near = Stream(Dataset.open(local.folder), 1 << 16, seed=4, holdout=0.0)
    assert np.array_equal(batch.tokens[good], near.read(0, near.samples).tokens[good])
    assert 0 < good.sum() < near.samples
    if not by_file:
        asked = [one for one in faults.blocks() if path.name in one]
        assert len(asked) == (3 if damage == "cut short" else 4)  # what is bad, twice


def test_the_error_of_a_bad_block_names_the_crops_of_its_own_reader(pair):
    """Two threads (the feed, an evaluation) meet the same block with other crops."""
    local, _, _, _ = pair
    (local.folder / "shards" / f"{local.manifest.shards[0].blake3}.bin").unlink()
    far = opened(pair)
    told = []
    for start in (5, 9):
        with pytest.raises(BadBlock) as caught:
            far.crops(np.array([start]), 10)
        told.append(caught.value)
    assert [bad.starts.tolist() for bad in told] == [[5], [9]]


def test_the_link_changes_a_small_file(pair):
    local, _, faults, _ = pair
    faults.flip = 1  # the manifest
    assert opened(pair).id == local.id
    (pair[3].folder / "sets").rename(pair[3].folder / "old")
    faults.asked.clear()
    (local.folder / "tokenizer.json").write_text("[]")
    with pytest.raises(PenstockError, match=r"tokenizer\.json is damaged.*fetched twice"):
        opened(pair)
    assert sum("tokenizer.json" in one for one in faults.asked) == 2


def test_a_cache_without_room_costs_no_second_fetch(pair, tmp_path):
    local, url, faults, _ = pair
    far = Dataset.open(url, Cache(tmp_path / "small", 100_000))
    order = [STARTS[:1], STARTS[2:3], STARTS[4:]]
    far.plan_ahead(iter(order), 10)
    for starts in order:
        assert np.array_equal(far.crops(starts, 10), local.crops(starts, 10))
    far.close()
    assert sorted(faults.blocks()) == sorted(set(faults.blocks()))


def test_a_part_that_repeats_itself_is_not_planned_to_the_end_of_the_run(dataset, tmp_path):
    """Few samples, many epochs: the same batch comes again and again."""
    local = dataset([np.arange(2 * HALF) % 1000])
    walked = []

    def batches():
        for step in range(100_000):
            walked.append(step)
            yield np.array([step % 3 * 16])

    with serve(local.folder) as (url, faults):
        far = Dataset.open(url, Cache(tmp_path / "cache", 64 * BLOCK_BYTES))
        far.plan_ahead(batches(), 17)
        ahead = far._files._ahead
        with ahead._changed:
            assert ahead._changed.wait_for(ahead._far_enough, 10)
        for step in range(200):
            far.crops(np.array([step % 3 * 16]), 17)
        far.close()
        assert len(walked) < 5000
        assert len(faults.blocks()) == 1


def test_ranks_that_plan_the_same_share_the_room_of_the_plan(tmp_path):
    cache = Cache(tmp_path, 64 * BLOCK_BYTES)
    half, plans = 32 * BLOCK_BYTES, [cache.open_plan() for _ in range(4)]
    own = plans[0]
    assert cache.planned_share_bytes(own, 0) == half // 4
    for plan in plans:
        plan.add([f"block-{n}" for n in range(8)])
    assert (
        cache.planned_share_bytes(own, 8 * BLOCK_BYTES) == 8 * BLOCK_BYTES + (24 * BLOCK_BYTES) // 4
    )
    for number, plan in enumerate(plans[1:]):
        plan.add([f"other-{number}-{n}" for n in range(8)])
    assert cache.planned_share_bytes(own, 8 * BLOCK_BYTES) == half // 4


@pytest.mark.usefixtures("impatient")
def test_a_missing_file_is_named(pair, tmp_path):
    local, url, _, cache = pair
    with pytest.raises(PenstockError, match=r"nowhere is not a dataset.*manifest\.json"):
        Dataset.open(f"{url}/nowhere", cache)
    far = opened(pair)
    path = next((local.folder / "shards").glob("*.bin"))
    path.unlink()
    with pytest.raises(BadBlock, match=f"{path.name}: it is not there.*fetched twice"):
        far.read(0, far.tokens)
    (problem,) = far.verify()
    assert path.name in problem
    (local.folder / "manifest.json").write_text("{")
    with pytest.raises(PenstockError, match=f"{url} cannot be used"):
        opened(pair)


def test_read_ahead_fetches_the_coming_blocks(pair):
    local, _, faults, _ = pair
    far = opened(pair)
    order = [STARTS[:1], STARTS[2:3], STARTS[3:]]
    far.plan_ahead(iter(order), 10)
    assert faults.wait_for(5)
    far.close()
    # Blocks 0, 2, 3 and 4 (the crop over the border), 5; in the order of their need.
    assert len(faults.blocks()) == 5
    assert far._files.access.misses == 0
    far = opened(pair)
    for starts in order:
        assert np.array_equal(far.crops(starts, 10), local.crops(starts, 10))
    assert len(faults.blocks()) == 5


def test_read_ahead_keeps_within_its_share_and_follows_the_reader(dataset, tmp_path):
    tokens = np.arange(40 * HALF) % 1000
    local = dataset([tokens])
    cache = Cache(tmp_path / "cache", 16 * BLOCK_BYTES)
    with serve(local.folder) as (url, faults):
        far = Dataset.open(url, cache)
        batches = [np.array([block * HALF]) for block in range(40)]
        far.plan_ahead(iter(batches), 10)
        for starts in itertools.chain(batches):
            ahead = far._files._ahead
            assert ahead._bytes <= 8 * BLOCK_BYTES  # half the cache
            assert np.array_equal(far.crops(starts, 10), local.crops(starts, 10))
            assert cache_bytes(cache) <= 16 * BLOCK_BYTES
        far.close()
        assert sorted(faults.blocks()) == sorted(set(faults.blocks()))
        assert len(faults.blocks()) == 40


def cache_bytes(cache):
    total = 0
    for folder in ("blocks", "writing"):
        for path in (cache.folder / folder).rglob("*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
    return total


def test_a_block_that_several_batches_need_is_counted_once_and_kept_until_the_last(
    dataset, tmp_path
):
    local = dataset([np.arange(4 * HALF) % 1000])
    cache = Cache(tmp_path / "cache", 64 * BLOCK_BYTES)
    with serve(local.folder) as (url, faults):
        far = Dataset.open(url, cache)
        batches = [np.array([k % 2 * HALF, 100 + k]) for k in range(6)]
        far.plan_ahead(iter(batches), 10)
        assert faults.wait_for(2)
        far._files._ahead._threads[0].join(10)  # all is planned
        assert far._files._ahead._bytes == 2 * BLOCK_BYTES
        for k, starts in enumerate(batches):
            names = all_planned(cache.folder / "plans")
            known = [f"{local.manifest.shards[0].blake3}-{block}" in names for block in (0, 1)]
            assert known == [True, True]
            far.crops(starts, 10)
            assert far._files._ahead._bytes == (0 if k == 5 else 2 * BLOCK_BYTES)
        far.close()
        assert len(faults.blocks()) == 2


def test_a_reader_that_is_ahead_of_the_plan_is_caught_up_with(dataset, tmp_path):
    local = dataset([np.arange(40 * HALF) % 1000])
    batches = [np.array([block * HALF]) for block in range(40)]
    begin = threading.Event()

    def late():
        begin.wait(10)
        yield from batches

    with serve(local.folder) as (url, faults):
        far = Dataset.open(url, Cache(tmp_path / "cache", 64 * BLOCK_BYTES))
        far.plan_ahead(late(), 10)
        for starts in [*batches[:25], np.array([7])]:  # the last one is in no plan
            far.crops(starts, 10)
        begin.set()
        assert faults.wait_for(40)  # the rest comes without being asked for
        far.close()
        assert len(faults.blocks()) == 40
