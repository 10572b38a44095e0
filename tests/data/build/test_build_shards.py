"""Shards: every document once, in the order of its key, however many shards and parts there are."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.build import shards as module
from penstock.data.build.parts import pack_rows, read_result
from penstock.data.build.shards import merge_tasks, shard_count, write_shard_of_range
from penstock.data.format.columns import read_columns, write_columns
from penstock.data.format.manifest import SHARDS, Shard
from penstock.extras import extra

END = 7

Documents = list[tuple[int, list[int]]]  # key, tokens without the end

keys = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1])
documents = st.lists(
    st.tuples(keys, st.lists(st.integers(10, 99), min_size=1, max_size=9)),
    min_size=1,
    max_size=25,
    unique_by=lambda document: document[0],
)


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def write_part(path: Path, some: Documents, masked: bool) -> None:
    some = sorted(some)
    tokens = [np.array([*ids, END], np.uint16) for _, ids in some]
    columns = {
        "keys": np.array([key for key, _ in some], np.uint64),
        "lows": np.zeros(len(some), np.uint64),
        "tokens": np.concatenate([np.empty(0, np.uint16), *tokens]),
        "ends": np.cumsum([len(one) for one in tokens], dtype=np.int64),
        **pack_rows("rows", [b"%d" % key for key, _ in some]),
    }
    if masked:
        columns["mask"] = columns["tokens"] % 2 == 0
    write_columns(path, columns)


def shards_of(
    folder: Path,
    some: Documents,
    parts: int,
    shards: int,
    packed: int = 0,
    masked: bool = False,
    merged_bytes: int = 0,
) -> list[Shard]:
    """The shards; `merged_bytes` merges two parts at a time first."""
    paths = tuple(folder / f"part{part}" for part in range(parts))
    for part, path in enumerate(paths):
        write_part(path, some[part::parts], masked)
    inputs = [paths] * shards
    if merged_bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "MERGE_FROM", 1)
            patch.setattr(module, "_MERGED_PARTS", 2)
            patch.setattr(module, "_MERGED_BYTES", merged_bytes)
            tasks, inputs = merge_tasks(paths, shards, 100, folder / "merged")
        for task in tasks:
            task.run()
    made = []
    for number in range(shards):
        task = folder / f"shard{number}"
        description = write_shard_of_range(
            number, shards, inputs[number], folder / SHARDS, packed, END
        )
        write_columns(task, description)
        if found := read_result(task):
            made.append(Shard(**found))
    return made


def stored(folder: Path, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, list]:
    """Tokens, document starts, mask and rows."""

    def read(name: str, dtype: str) -> np.ndarray:
        return np.frombuffer((folder / SHARDS / name).read_bytes(), dtype)

    mask = None
    if shard.mask:
        mask = np.unpackbits(read(f"{shard.mask}.mask", "u1"), count=shard.tokens).astype(bool)
    squeezed = (folder / SHARDS / f"{shard.rows}.rows").read_bytes()
    rows = extra("zstandard", "The test").ZstdDecompressor().decompress(squeezed).split()
    starts = read(f"{shard.docs}.docs", "<u8").astype(int)
    return read(f"{shard.blake3}.bin", "<u2"), starts, mask, [int(row) for row in rows]


@settings(max_examples=40, deadline=None)
@given(documents, st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_every_document_once_and_in_order(
    tmp_path_factory, some: Documents, parts: int, shards: int, masked: bool
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    found: Documents = []
    for shard in shards_of(folder, some, parts, shards, masked=masked):
        tokens, starts, mask, rows = stored(folder, shard)
        assert shard.documents == len(starts) == len(rows)
        assert (mask is not None) == masked
        if mask is not None:
            assert np.array_equal(mask, tokens % 2 == 0)
        for key, one in zip(rows, np.split(tokens, starts[1:]), strict=True):
            assert one[-1] == END
            found.append((key, one[:-1].tolist()))
    assert found == sorted(some)


@settings(max_examples=30, deadline=None)
@given(
    documents,
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([0, 5]),
    st.booleans(),
    st.sampled_from([1, 20, 50]),
)
def test_merged_parts_give_the_same_shards(
    tmp_path_factory,
    some: Documents,
    parts: int,
    shards: int,
    packed: int,
    masked: bool,
    merged_bytes: int,
) -> None:
    plain, merged = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("merged")
    expected = shards_of(plain, some, parts, shards, packed, masked)
    assert shards_of(merged, some, parts, shards, packed, masked, merged_bytes) == expected


@settings(max_examples=30, deadline=None)
@given(documents, st.integers(1, 3), st.integers(1, 4), st.integers(3, 12))
def test_packed_pieces_are_all_there(
    tmp_path_factory, some: Documents, parts: int, shards: int, sequence: int
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    expected = {key: [*ids, END] for key, ids in some}
    found: dict[int, int] = {}
    for shard in shards_of(folder, some, parts, shards, packed=sequence):
        tokens, starts, mask, rows = stored(folder, shard)
        # The last shard has one token more: the last target of the last bin.
        over = len(tokens) % sequence
        assert over == 1 if shards == 1 else over in (0, 1)
        assert mask is not None
        assert not mask[::sequence].any()
        for key, start in zip(rows, starts.tolist(), strict=True):
            whole = expected[key]
            bin_end = (start // sequence + 1) * sequence
            later = starts[starts > start]
            stop = min(bin_end, int(later[0]) if len(later) else bin_end)
            # Up to the next piece or the bin's end; padding is END that is not learned.
            piece = tokens[start:stop].tolist()
            while len(piece) > 1 and piece[-1] == END and not mask[start + len(piece) - 1]:
                piece.pop()
            assert piece in (whole, *_cuts(whole, sequence))
            found[key] = found.get(key, 0) + len(piece)
    assert found == {key: len(whole) for key, whole in expected.items()}


def _cuts(whole: list[int], sequence: int) -> list[list[int]]:
    return [whole[at : at + sequence] for at in range(0, len(whole), sequence)]


def test_as_many_shards_as_the_size_asks_for(tmp_path: Path) -> None:
    assert [shard_count(size, 100) for size in (1, 100, 101, 1000)] == [1, 1, 2, 10]
    rng = np.random.default_rng(0)
    some = [(2 * int(key), [11] * 20) for key in rng.integers(0, 1 << 63, 4000)]
    sizes = [shard.tokens for shard in shards_of(tmp_path, some, 1, 8)]
    assert len(sizes) == 8
    assert max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) == 4000 * 21
    assert read_columns(tmp_path / "part0", "keys")["keys"].size == 4000
