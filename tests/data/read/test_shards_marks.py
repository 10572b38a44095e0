"""Loss masks, document marks and rows beside the tokens, and what damage to them does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_masks import with_masks
from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.format.shard_file import BadBlock
from penstock.data.read.dataset import Dataset

shared_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)


@shared_folder
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    shard_tokens=st.integers(3, 60),
    data=st.data(),
)
def test_masks_and_marks_equal_those_of_the_whole(dataset, lengths, shard_tokens, data):
    total = sum(lengths)
    rng = np.random.default_rng(total)
    mask = rng.integers(0, 2, total).astype(bool)
    plain = dataset([np.zeros(n, int) for n in lengths], shard_bytes=2 * shard_tokens)
    shards = data.draw(st.sets(st.integers(0, len(plain.manifest.shards) - 1), min_size=1))
    found = with_masks(plain.folder, mask, shards)
    expected, first = mask.copy(), 0
    for k, shard in enumerate(found.manifest.shards):
        if k not in shards:  # no mask: every token counts
            expected[first : first + shard.tokens] = True
        first += shard.tokens
    begins = np.zeros(total, bool)
    begins[np.cumsum([0, *lengths[:-1]])] = True

    length = data.draw(st.integers(1, total))
    starts = np.array(data.draw(st.lists(st.integers(0, total - length), max_size=8)), dtype=int)
    loss = found.loss_mask(starts, length)
    marks = found.document_marks(starts, length)
    assert loss.shape == marks.shape == (len(starts), length)
    for row, start in enumerate(starts):
        assert np.array_equal(loss[row], expected[start : start + length])
        assert np.array_equal(marks[row], begins[start : start + length])
    assert plain.loss_mask(starts, length) is None
    ids = [row["id"] for k in range(len(found.manifest.shards)) for row in found.rows(k)]
    assert ids == [f"d{n}" for n in range(len(lengths))]
    assert plain.rows(0) == []
    assert found.verify() == []


def test_a_bad_block_says_which_crops_need_it(dataset):
    half = BLOCK_BYTES // 2  # tokens in a block
    found = dataset([np.arange(3 * half) % 1000, np.arange(5)], shard_bytes=2 * BLOCK_BYTES)
    first = found.folder / "shards" / f"{found.manifest.shards[0].blake3}.bin"
    content = bytearray(first.read_bytes())
    content[BLOCK_BYTES] ^= 1
    first.write_bytes(content)
    starts = np.array([5, half - 3, half - 10, half, 2 * half - 1, 2 * half])
    with pytest.raises(BadBlock) as caught:
        Dataset.open(found.folder).crops(starts, 10)
    bad = caught.value
    assert bad.file == str(first)
    assert bad.block == 1
    assert bad.tokens == (half, 2 * half)
    assert bad.starts.tolist() == [half - 3, half, 2 * half - 1]
    good = np.setdiff1d(starts, bad.starts)
    assert Dataset.open(found.folder).crops(good, 10).shape == (3, 10)


@pytest.mark.parametrize("kind", ["mask", "docs", "sums", "rows"])
def test_a_damaged_sidecar_affects_only_its_shard(dataset, kind):
    plain = dataset([np.arange(100), np.arange(60), np.arange(40)], shard_bytes=200)
    found = with_masks(plain.folder, np.arange(200) % 3 == 0)
    digest = getattr(found.manifest.shards[1], kind)
    path = found.folder / "shards" / f"{digest}.{kind}"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 8]) + path.read_bytes()[1:])
    again = Dataset.open(found.folder)
    read = {
        "mask": again.loss_mask,
        "docs": again.document_marks,
        "sums": again.crops,
        "rows": lambda starts, length: again.rows(1),
    }[kind]
    with pytest.raises(BadBlock, match=path.name) as caught:
        read(np.array([0, 95, 150]), 10)
    assert (caught.value.file, caught.value.block) == (str(path), 0)
    assert caught.value.tokens == (100, 200)
    if kind != "rows":
        assert caught.value.starts.tolist() == [95, 150]
        assert len(read(np.array([0, 90]), 10)) == 2
