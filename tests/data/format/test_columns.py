"""Files of columns."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.format.columns import (
    ColumnFile,
    read_columns,
    temporary_path,
    with_index,
    write_columns,
)
from penstock.data.store.object_path import ObjectPath, existing, remove_tree
from penstock.errors import PenstockError


def test_columns_come_back_and_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    given = {"x": np.arange(5, dtype=np.uint32), "y": np.empty((2, 0)), "z": np.ones((2, 3))}
    write_columns(path, given)
    back = read_columns(path)
    assert list(back) == list(given)
    assert list(read_columns(path, "z", "none")) == ["z"]
    for name, array in given.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)
    assert not temporary_path(path).exists()
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(PenstockError, match="column 'z' ends at byte"):
        read_columns(path)
    path.write_bytes(b"something else")
    with pytest.raises(PenstockError, match="Delete it and run again"):
        read_columns(path)


def test_objects_hold_the_same(tmp_path: Path) -> None:
    """Small and large ones: the first read of an object brings a small one whole."""
    rng = np.random.default_rng(0)
    given = {"a": rng.random((3, 5000)), "b": np.empty((0, 2)), "c": rng.integers(9, size=77)}
    for name, columns in (("large", given), ("small", {"c": given["c"]}), ("none", {})):
        disk, stored = tmp_path / name, ObjectPath(f"file://{tmp_path}/objects/{name}")
        write_columns(disk, columns)
        write_columns(stored, columns)
        assert (tmp_path / "objects" / name).read_bytes() == disk.read_bytes()
        back = read_columns(stored)
        assert list(back) == list(columns)
        for column, array in columns.items():
            assert np.array_equal(back[column], array)
            assert back[column].dtype == array.dtype
    cut = ColumnFile(ObjectPath(f"file://{tmp_path}/objects/large")).cut(10, 20, "a", row=1)
    assert np.array_equal(cut["a"], given["a"][1, 10:20])


def test_objects_are_listed_and_removed(tmp_path: Path) -> None:
    folder = ObjectPath(f"file://{tmp_path}/objects")
    paths = [folder / "one" / str(n) for n in range(3)]
    assert existing(paths) == set()
    assert not folder.is_dir()
    for path in paths[:2]:
        write_columns(path, {})
    assert existing(paths) == set(paths[:2])
    assert [path.name for path in folder.iterdir()] == ["one"]
    remove_tree(folder / "one")
    assert existing(paths) == set()
    remove_tree(folder / "none")


@pytest.mark.parametrize("objects", [False, True])
@given(
    values=st.lists(st.integers(0, 300) | st.integers((1 << 64) - 3, (1 << 64) - 1), max_size=200),
    low=st.integers(0, 320),
    width=st.integers(0, 99) | st.just(1 << 64),
)
def test_a_range_of_a_sorted_column(
    tmp_path_factory: pytest.TempPathFactory, objects: bool, values: list[int], low: int, width: int
) -> None:
    folder = tmp_path_factory.mktemp("find")
    path = ObjectPath(f"file://{folder}/x") if objects else folder / "x"
    keys = np.sort(np.array(values, np.uint64))
    both = np.stack([keys, keys])
    write_columns(
        path, with_index({"keys": both, "places": np.stack([np.arange(len(keys))] * 2)}, "keys")
    )
    first, found = ColumnFile(path).find("keys", low, low + width, "places", row=1)
    expected = [at for at, key in enumerate(keys.tolist()) if low <= key < low + width]
    assert found["places"].tolist() == expected
    assert found["keys"].tolist() == [keys[at] for at in expected]
    assert not expected or first == expected[0]
