import json
import shutil

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.read.dataset import Dataset
from penstock.errors import PenstockError

shared_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None
)


@shared_folder
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    shard_tokens=st.integers(3, 60),
    vocab=st.sampled_from([1 << 16, 1 << 17]),
    data=st.data(),
)
def test_reads_and_crops_equal_the_documents_end_to_end(
    dataset, lengths, shard_tokens, vocab, data
):
    rng = np.random.default_rng(len(lengths))
    documents = [rng.integers(0, vocab, length) for length in lengths]
    whole = np.concatenate(documents)
    itemsize = 2 if vocab == 1 << 16 else 4
    found = dataset(documents, vocab=vocab, shard_bytes=shard_tokens * itemsize)
    assert found.tokens == len(whole)
    assert found.documents == len(documents)
    assert found.dtype.itemsize == itemsize
    assert all(shard.tokens <= shard_tokens for shard in found.manifest.shards)

    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert np.array_equal(found.read(start, stop), whole[start:stop])

    length = data.draw(st.integers(1, len(whole)))
    starts = data.draw(st.lists(st.integers(0, len(whole) - length), max_size=8))
    crops = found.crops(np.array(starts, dtype=np.int64), length)
    assert crops.dtype == found.dtype
    assert crops.shape == (len(starts), length)
    assert all(np.array_equal(c, whole[s : s + length]) for c, s in zip(crops, starts, strict=True))

    where = np.concatenate([found.document_starts(k) for k in range(len(found.manifest.shards))])
    assert where.tolist() == [0, *np.cumsum(lengths[:-1]).tolist()]
    assert found.verify() == []


def test_reading_outside_is_refused(dataset):
    found = dataset([np.arange(10)])
    for start, stop in [(-1, 3), (5, 11), (4, 3)]:
        with pytest.raises(ValueError, match="within the 10"):
            found.read(start, stop)
    for start in (-1, 8):
        with pytest.raises(ValueError, match="within the 10"):
            found.crops(np.array([start]), 3)


def test_every_single_byte_flip_is_detected(dataset):
    found = dataset([np.arange(100), np.arange(30)], shard_bytes=150)
    for path in sorted((found.folder / "shards").iterdir()):
        content = path.read_bytes()
        for at in range(len(content)):
            for bits in (1, 128):
                path.write_bytes(content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :])
                again = Dataset.open(found.folder)
                with pytest.raises(PenstockError, match=path.name):
                    read_all(again)
        path.write_bytes(content)
    read_all(Dataset.open(found.folder))


def read_all(dataset: Dataset) -> None:
    dataset.crops(np.arange(dataset.tokens), 1)
    for shard in range(len(dataset.manifest.shards)):
        dataset.document_starts(shard)


def test_every_changed_byte_of_the_manifest_is_detected(dataset):
    found = dataset([np.arange(20)])
    path = found.folder / "manifest.json"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(PenstockError):
            Dataset.open(found.folder)


def test_a_damaged_block_is_named_and_the_others_still_read(dataset):
    tokens = np.arange(3 * BLOCK_BYTES // 2) % 1000  # three blocks of uint16
    found = dataset([tokens])
    path = next((found.folder / "shards").glob("*.bin"))
    content = bytearray(path.read_bytes())
    content[BLOCK_BYTES + 5] ^= 4
    path.write_bytes(content)

    again = Dataset.open(found.folder)
    half = BLOCK_BYTES // 2  # tokens in a block
    assert np.array_equal(again.read(0, half), tokens[:half])
    assert np.array_equal(again.crops(np.array([2 * half]), half)[0], tokens[2 * half :])
    with pytest.raises(PenstockError) as error:
        again.read(half - 1, half + 1)
    message = str(error.value)
    assert str(path) in message
    assert f"block 1 (bytes {BLOCK_BYTES} to {2 * BLOCK_BYTES})" in message
    assert f"Delete {found.folder} and build" in message
    with pytest.raises(PenstockError, match="block 1 "):
        again.crops(np.array([0]), 3 * half)  # a crop that only passes over it
    (problem,) = again.verify()
    assert f"{path} has changed" in problem


def test_a_block_is_checked_once(dataset, monkeypatch):
    found = dataset([np.arange(1000)])
    hashed = []
    real = xxhash.xxh3_64_intdigest
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda b: hashed.append(1) or real(b))
    for _ in range(3):
        found.crops(np.array([0, 500]), 10)
        found.read(0, 1000)
    assert len(hashed) == 1


def test_each_block_of_each_shard_is_checked_when_first_touched(dataset, monkeypatch):
    half = BLOCK_BYTES // 2  # tokens in a block
    tokens = np.arange(8 * half) % 1000  # two shards of four blocks
    found = dataset([tokens[: 4 * half], tokens[4 * half :]], shard_bytes=4 * BLOCK_BYTES)
    assert [shard.blocks for shard in found.manifest.shards] == [4, 4]
    hashed = []
    real = xxhash.xxh3_64_intdigest
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda b: hashed.append(1) or real(b))
    for starts, length, checked in [
        ([5, 9], 10, 1),  # one block
        ([5, 3 * half], 10, 2),  # and one that is not its neighbour
        ([half - 1], 1, 2),  # its last token
        ([half], 1, 3),
        ([4 * half - 5], 10, 4),  # the first of the next shard
        ([6 * half - 5], 2 * half + 5, 7),  # across three
        ([0], 8 * half, 8),  # everything: the one that is left
        ([0, 3, 7 * half], half, 8),
    ]:
        crops = found.crops(np.array(starts), length, np.int64)
        assert crops.dtype == np.int64
        assert np.array_equal(crops, np.stack([tokens[at : at + length] for at in starts]))
        assert len(hashed) == checked


def test_a_truncated_shard_is_refused_at_open_and_at_first_use(dataset):
    found = dataset([np.arange(100)])
    path = next((found.folder / "shards").glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(PenstockError, match=r"\.bin has 198 bytes, expected 200\. Delete"):
        Dataset.open(found.folder)
    with pytest.raises(PenstockError, match=r"\.bin has 198 bytes, expected 200\. Delete"):
        found.read(0, 1)  # opened before the file shrank, not yet mapped


@pytest.mark.parametrize(
    "pattern", ["shards/*.bin", "shards/*.sums", "shards/*.docs", "tokenizer.json"]
)
def test_a_missing_file_is_named(dataset, pattern):
    found = dataset([np.arange(100)])
    path = next(found.folder.glob(pattern))
    path.unlink()
    with pytest.raises(PenstockError, match=f"{path.name} is missing"):
        Dataset.open(found.folder)
    assert [path.name in problem for problem in found.verify()] == [True]


def test_messages_for_a_broken_manifest(dataset, tmp_path):
    with pytest.raises(PenstockError, match=r"is not a dataset: it has no manifest\.json"):
        Dataset.open(tmp_path)
    found = dataset([np.arange(100)])
    path = found.folder / "manifest.json"
    content = path.read_text()
    path.write_text(content[: len(content) // 2])
    with pytest.raises(PenstockError, match="is not JSON"):
        Dataset.open(found.folder)
    path.write_text(content.replace('"format": 1', '"format": 99'))
    with pytest.raises(
        PenstockError, match="has format 99; this version of Penstock reads format 1"
    ):
        Dataset.open(found.folder)
    path.write_text(content.replace('"documents": 1', '"documents": 2', 1))
    with pytest.raises(PenstockError, match=f"says version {found.version}"):
        Dataset.open(found.folder)


def test_a_changed_tokenizer_is_refused(dataset):
    found = dataset([np.arange(100)])
    assert found.tokenizer_json() == b"{}"
    (found.folder / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(PenstockError, match=r"tokenizer\.json is damaged"):
        found.tokenizer_json()


def test_verify_reports_progress_to_the_end(dataset):
    told = []
    dataset([np.arange(10)]).verify(lambda *step: told.append(step))
    assert told[0] == ("verify", 0, 4)
    assert told[-1] == ("verify", 4, 4)


def test_the_id_depends_on_content_and_not_on_place(dataset, tmp_path):
    found = dataset([np.arange(10)])
    assert found.id == f"small@{found.version}"
    assert found.folder.name == found.id
    shutil.copytree(found.folder, tmp_path / "elsewhere")
    assert Dataset.open(tmp_path / "elsewhere").id == found.id
    assert dataset([np.arange(10)]).id == found.id
    assert dataset([np.arange(11)]).id != found.id
    assert str(tmp_path) not in (found.folder / "manifest.json").read_text()
    assert json.loads((found.folder / "manifest.json").read_text())["version"] == found.version
