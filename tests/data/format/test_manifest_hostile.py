"""Datasets from somebody else: whole and with a right version, but not true."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

import made_sets
from penstock import untrusted
from penstock.data.format.manifest import MANIFEST, SHARDS, Manifest, read_manifest
from penstock.data.format.shard_file import BadBlock
from penstock.data.read import local_files
from penstock.data.read.dataset import Dataset
from penstock.data.store.cache import Cache
from penstock.errors import PenstockError
from range_server import serve

TOKENS = np.arange(4000) % 300
OUT = f"../../{'a' * 58}"
ODD: list[Any] = [None, True, -1, 2**70, 1.5, float("nan"), "", "x", "../x", [], {}, [[[]]], OUT]


@pytest.fixture
def good(tmp_path: Path) -> Dataset:
    starts = list(range(0, 4000, 100))
    return made_sets.made_set(tmp_path, TOKENS, starts, shard_tokens=1500, rows=True)


def signed(found: Dataset, manifest: Manifest) -> Path:
    """Put a manifest there that is what it says."""
    (found.folder / MANIFEST).write_text(manifest.to_json())
    return found.folder


def first_shard(found: Dataset, **fields: Any) -> Manifest:
    one, *others = found.manifest.shards
    return replace(found.manifest, shards=(replace(one, **fields), *others))


@pytest.mark.parametrize("field", ["blake3", "sums", "docs", "mask", "rows"])
@pytest.mark.parametrize("name", [OUT, "/etc/passwd", "..", "A" * 64, "a" * 63, 7, None, ["a"]])
def test_the_name_of_a_file_is_a_hash(good: Dataset, field: str, name: Any) -> None:
    where = signed(good, first_shard(good, **{field: name}))
    with pytest.raises(
        PenstockError, match=rf"cannot be true: shard 0: {field} = .* is not a hash"
    ):
        Dataset.open(where)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: replace(d.manifest, name="../up"), "its name is"),
        (lambda d: replace(d.manifest, name="a/b"), "its name is"),
        (lambda d: replace(d.manifest, vocab=2**40), "its vocabulary has"),
        (lambda d: replace(d.manifest, vocab=0), "its vocabulary has"),
        (lambda d: replace(d.manifest, vocab=70_000), "tokens of type '<u2' for 70000"),
        (lambda d: replace(d.manifest, dtype="O"), "tokens of type 'O'"),
        (lambda d: replace(d.manifest, dtype="<f8"), "tokens of type"),
        (lambda d: replace(d.manifest, tokens=10**15), "tokens, but 4000 in its shards"),
        (lambda d: replace(d.manifest, documents=-1), "not a whole number"),
        (lambda d: replace(d.manifest, packed=-1), "not a whole number"),
        (lambda d: replace(d.manifest, tokenizer="../../x"), "its tokenizer is"),
        (lambda d: replace(d.manifest, recipe=[]), "recipe is"),
        (lambda d: replace(d.manifest, parents=(1,)), "parents"),
        (lambda d: first_shard(d, tokens=0, bytes=0), "0 tokens in 15 documents"),
        (lambda d: first_shard(d, tokens=-1500), "-1500 tokens"),
        (lambda d: first_shard(d, bytes=2**60), "bytes for 1500 tokens"),
        (lambda d: first_shard(d, documents=10**12), "tokens in 1000000000000 documents"),
        (lambda d: first_shard(d, rows_bytes=-1), "rows_bytes = -1"),
    ],
)
def test_numbers_that_cannot_be(
    good: Dataset, change: Callable[[Dataset], Manifest], words: str
) -> None:
    where = signed(good, change(good))
    with pytest.raises(PenstockError, match=rf"cannot be true: .*{words}"):
        Dataset.open(where)


def test_a_manifest_that_is_nested_without_end_or_too_large(
    good: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = good.folder / MANIFEST
    content = path.read_text()
    path.write_text("[" * 100_000)
    with pytest.raises(PenstockError, match="nested too deeply"):
        read_manifest(good.folder)
    deep = "[" * 700 + "]" * 700
    path.write_text(content.replace('"kind": "test"', f'"kind": {deep}'))
    with pytest.raises(PenstockError, match=r"manifest\.json"):
        read_manifest(good.folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PenstockError, match="not a plain file"):
        read_manifest(good.folder)


@pytest.mark.parametrize("what", ["tokenizer.json", SHARDS, ".bin", ".docs"])
def test_a_link_out_of_the_dataset_is_refused(good: Dataset, tmp_path: Path, what: str) -> None:
    name = what if not what.startswith(".") else next(good.folder.glob(f"{SHARDS}/*{what}"))
    path = good.folder / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PenstockError, match="is a link that leads out of the dataset"):
        Dataset.open(good.folder)
    path.unlink()
    (tmp_path / "elsewhere").rename(good.folder / "moved")
    path.symlink_to(good.folder / "moved")  # within it, anything goes
    assert Dataset.open(good.folder).read(0, 4000).tolist() == TOKENS.tolist()


def foreign(tmp_path: Path) -> Dataset:
    """A whole dataset with one id that is not in its vocabulary, at position 1234 of shard 1."""
    tokens = TOKENS.copy()
    tokens[1500 + 1234] = 7777
    return made_sets.made_set(tmp_path, tokens, [0, 1500, 3000], shard_tokens=1500)


def test_verify_reports_an_id_outside_the_vocabulary(tmp_path: Path) -> None:
    found = foreign(tmp_path)
    file = f"{SHARDS}/{found.manifest.shards[1].blake3}.bin"
    words = f"{file}: token 7777 at position 1234 is not in its vocabulary of 300"
    assert found.verify() == [f"{found.folder}/{words}"]
    with serve(found.folder) as (url, _):
        far = Dataset.open(url, Cache(tmp_path / "cache"))
        assert far.verify() == [f"{url}/{words}"]
        with pytest.raises(BadBlock, match="token 7777 at position 1234 is not in its vocabulary"):
            far.crops(np.array([2000]), 16)
        far.close()


def test_verify_counts_positions_over_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "CHUNK_BYTES", 64)
    assert "at position 1234 is" in foreign(tmp_path).verify()[0]


def test_reading_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    found = foreign(tmp_path)
    assert found.read(0, 1500).tolist() == TOKENS[:1500].tolist()
    with pytest.raises(BadBlock, match="position 1234 is not in its vocabulary of 300") as bad:
        found.crops(np.array([0, 1600]), 16)
    assert bad.value.tokens == (1500, 3000)
    assert bad.value.starts.tolist() == [1600]


@pytest.mark.parametrize("starts", [[0, 5000], [300, 200], [2**63, 1]])
def test_documents_that_start_nowhere(tmp_path: Path, starts: list[int]) -> None:
    good = made_sets.made_set(tmp_path, TOKENS, [0, 100])
    content = np.array(starts, "<u8").tobytes()
    name = blake3(content).hexdigest()
    (good.folder / SHARDS / f"{name}.docs").write_bytes(content)
    found = Dataset.open(signed(good, first_shard(good, docs=name)))
    with pytest.raises(BadBlock, match="do not start one after the other"):
        found.document_marks(np.array([0]), 4000)
    with pytest.raises(BadBlock, match="do not start one after the other"):
        found.document_starts(0)


@pytest.mark.parametrize("rows", [b"garbage", b"[1]\n", b"[" * 5000, b" " * (1 << 20)])
def test_rows_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: bytes
) -> None:
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED_BYTES", 1 << 10)
    good = made_sets.made_set(tmp_path, TOKENS, [0, 100], rows=True)
    content = rows if rows == b"garbage" else zstandard.compress(rows)
    name = blake3(content).hexdigest()
    (good.folder / SHARDS / f"{name}.rows").write_bytes(content)
    changed = first_shard(good, rows=name, rows_bytes=len(content))
    with pytest.raises(PenstockError, match="the rows of the documents of shard 0"):
        Dataset.open(signed(good, changed)).rows(0)


FIELDS = st.sampled_from([*Manifest.__dataclass_fields__])
SHARD_FIELDS = st.sampled_from(["blake3", "tokens", "bytes", "sums", "docs", "documents", "rows"])


@given(st.data())
def test_any_manifest_is_a_dataset_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Odd values under a right version, flips, cuts and random bytes."""
    folder = tmp_path_factory.mktemp("set")
    good = made_sets.made_set(folder, TOKENS[:100], [0, 50])
    path = good.folder / MANIFEST
    kind = data.draw(st.sampled_from(["field", "shard", "flip", "cut", "bytes"]))
    odd = data.draw(st.sampled_from(ODD) | st.integers() | st.text(max_size=5))
    if kind == "field":
        field = data.draw(FIELDS.filter(lambda name: name != "shards"))
        signed(good, replace(good.manifest, **{field: odd}))
    elif kind == "shard":
        signed(good, first_shard(good, **{data.draw(SHARD_FIELDS): odd}))
    elif kind == "bytes":
        path.write_bytes(data.draw(st.binary(max_size=100)))
    else:
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if kind == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content if kind == "flip" else content[:at])
    try:
        found = Dataset.open(good.folder)
    except PenstockError:
        return
    assert found.read(0, 100).tolist() == TOKENS[:100].tolist()
    assert found.document_starts(0).tolist() == [0, 50]
