"""Traces of capacity: in order, or refused with the line."""

from itertools import islice
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.simulate.traces import read_trace

HEAD = "zone,start_s,end_s,available\n"


def written(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "trace.csv"
    path.write_text(head + "".join(f"{row}\n" for row in rows))
    return path


def test_a_trace_repeats(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "a,100,150,4", "a,150,300,0"))
    assert trace.nodes == (4, 0)
    assert list(islice(trace.changes(), 4)) == [(50.0, 0), (200.0, 4), (250.0, 0), (400.0, 4)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["a,0,10,4", "a,30,40,2", "a,10,30,1"], r":3: starts at 30 s and the row before.* 10 s"),
        (["a,0,10,-4"], r":2: from 0 s to 10 s, -4 nodes"),
        (["a,10,0,4"], r":2: from 10 s to 0 s"),
        (["a,x,10,4"], r":2: start_s = x"),
        ([], r"no rows"),
    ],
)
def test_a_trace_that_is_not_in_order_is_refused(tmp_path: Path, rows: list[str], why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        read_trace(written(tmp_path, *rows))


def test_a_missing_column_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no column available"):
        read_trace(written(tmp_path, "1,2", head="start_s,end_s\n"))
    with pytest.raises(PenstockError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
