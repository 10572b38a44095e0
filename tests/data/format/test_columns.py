"""Files of columns."""

import os
from pathlib import Path

import numpy as np
import pytest

from penstock.data.format.columns import read_columns, temporary_path, write_columns
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
