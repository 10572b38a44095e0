"""Damaged data: every flipped byte is noticed, and skipping moves nothing."""

from pathlib import Path

import numpy as np
import pytest

from made_sets import made_set
from penstock.data.format.manifest import BLOCK_BYTES, MANIFEST
from penstock.data.format.shard_file import BadBlock
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError

S = 8


@pytest.fixture
def small(tmp_path: Path) -> Dataset:
    """Two shards with every kind of file, of a few dozen bytes each."""
    tokens = np.arange(100)
    return made_set(
        tmp_path, tokens, [0, 7, 30, 64, 90], tokens % 3 > 0, shard_tokens=56, rows=True
    )


def read_all(folder: Path) -> None:
    """What training and looking at it reads."""
    dataset = Dataset.open(folder)
    Stream(dataset, S, seed=0, holdout=0.0, marks=True).read(0, 12)
    for shard in range(len(dataset.manifest.shards)):
        dataset.rows(shard)
    dataset.tokenizer_json()


def flip(path: Path, byte: int, by: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= by
    path.write_bytes(content)


def test_every_flipped_byte_is_noticed(small):
    read_all(small.folder)
    files = [path for path in small.folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".bin", ".sums", ".docs", ".mask", ".rows"}
    tried = 0
    for path in files:
        step = 17 if path.name == MANIFEST else 1
        for byte in range(0, path.stat().st_size, step):
            by = 1 << (byte % 8)
            flip(path, byte, by)
            with pytest.raises(PenstockError):
                read_all(small.folder)
            if path.name != MANIFEST:
                assert small.verify() != []
            flip(path, byte, by)
            tried += 1
    read_all(small.folder)
    assert tried > 300


@pytest.fixture
def large(tmp_path: Path) -> Dataset:
    """Two shards of two blocks each, of uint16."""
    block = BLOCK_BYTES // 2
    tokens = np.arange(4 * block + 1) % 50_000
    return made_set(tmp_path, tokens, [0], shard_tokens=2 * block, vocab=50_000)


def test_a_bad_block_is_skipped_and_nothing_moves(large):
    sequence = 1 << 16
    whole = Stream(large, sequence, seed=4, holdout=0.0).read(0, 64)
    path = large.folder / "shards" / f"{large.manifest.shards[0].blake3}.bin"
    flip(path, BLOCK_BYTES + 77)
    damaged = Dataset.open(large.folder)
    with pytest.raises(BadBlock, match="block 1"):
        Stream(damaged, sequence, seed=4, holdout=0.0).read(0, 64)
    stream = Stream(damaged, sequence, seed=4, holdout=0.0, skip=True)
    batch = stream.read(0, 64)
    numbers = stream.parts[0].order.index(np.arange(64))
    # Block 1 holds samples 8 to 15, and sample 7's last target is its first token.
    bad = (numbers >= 7) & (numbers <= 15)
    assert bad.sum() >= 9
    assert batch.loss is not None
    assert np.array_equal(~batch.loss.any(1), bad)
    assert batch.loss[~bad].all()
    assert np.array_equal(batch.tokens[~bad], whole.tokens[~bad])
    assert not batch.tokens[bad].any()
    assert batch.counted == int((~bad).sum()) * sequence
    (skipped,) = batch.skipped
    assert (skipped.dataset, skipped.file, skipped.block) == (large.id, str(path), 1)
    assert skipped.samples == (7, 15)
    clean = stream.read(int(np.flatnonzero(~bad)[0]), int(np.flatnonzero(~bad)[0]) + 1)
    assert (clean.loss, clean.skipped) == (None, ())


def test_skipping_keeps_masks_and_marks(small):
    _, second = small.manifest.shards
    expected = Stream(small, S, seed=0, holdout=0.0, marks=True).read(0, 12)
    flip(small.folder / "shards" / f"{second.blake3}.bin", 3)
    stream = Stream(Dataset.open(small.folder), S, seed=0, holdout=0.0, marks=True, skip=True)
    batch = stream.read(0, 12)
    good = batch.loss.any(1)
    # The second shard begins at token 56, the last target of sample 6.
    assert (~good).sum() == 6
    for name in ("tokens", "loss", "starts"):
        assert np.array_equal(getattr(batch, name)[good], getattr(expected, name)[good])
    assert not batch.starts[~good].any()
    assert batch.skipped[0].samples == (6, 11)


@pytest.mark.parametrize("kind", ["sums", "docs", "mask"])
def test_a_bad_sidecar_costs_only_the_samples_of_its_shard(small, kind):
    digest = getattr(small.manifest.shards[0], kind)
    flip(small.folder / "shards" / f"{digest}.{kind}", 0)
    stream = Stream(Dataset.open(small.folder), S, seed=0, holdout=0.0, marks=True, skip=True)
    batch = stream.read(0, 12)
    numbers = stream.parts[0].order.index(np.arange(12))
    assert sorted(numbers[~batch.loss.any(1)].tolist()) == list(range(7))
    assert batch.skipped[0].file.endswith(f".{kind}")


def test_a_stream_that_may_skip_says_that_tokens_may_not_count(small, large):
    assert Stream(small, S, seed=0, holdout=0.0).masked
    assert not Stream(large, S, seed=0, holdout=0.0).masked
    assert Stream(large, S, seed=0, holdout=0.0, skip=True).masked
