"""CSV and TSV are read as Python's `csv` reads them, in bounded memory, with the place of a row."""

import csv
import gzip
import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.sources.csv_rows import BrokenRow, CsvRows, sniff_delimiter, split_cells
from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_source
from penstock.data.sources.records import RawRecord

_MOST = 1 << 20
_table = st.lists(
    st.lists(st.text('ab,;"\n\r\t é', max_size=6), min_size=1, max_size=4), min_size=1, max_size=5
)
_delimiter = st.sampled_from([",", ";", "\t", "|"])
_chunk = st.integers(1, 30)


def _blocks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def _cuts(content: bytes, size: int, delimiter: str = ",", most: int = _MOST) -> list[RawRecord]:
    return list(CsvRows(_blocks(content, size), delimiter, most))


@given(_table, _delimiter, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), _chunk)
def test_the_cells_are_those_of_the_csv_module(
    table: list[list[str]], delimiter: str, end: str, quote_all: bool, size: int
) -> None:
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(table)
    content = out.getvalue()
    whole = io.StringIO(content, newline="")
    expected = [row for row in csv.reader(whole, delimiter=delimiter) if row]
    cuts = _cuts(content.encode(), size, delimiter)
    assert [split_cells(cut.content.decode(), delimiter) for cut in cuts] == expected
    assert not any(cut.problem for cut in cuts)
    for cut in cuts:
        assert content.encode()[cut.offset :].startswith(cut.content)


@given(st.text('a,"\n\r', max_size=30), _chunk)
def test_any_text_is_read_as_by_the_csv_module_or_rejected(text: str, size: int) -> None:
    strict = csv.reader(io.StringIO(text, newline=""), strict=True)
    expected: list[list[str]] = []
    try:
        expected.extend(row for row in strict if row)
        broken = False
    except csv.Error:
        broken = True
    found: list[list[str]] = []
    told = False
    for cut in _cuts(text.encode(), size):
        try:
            if cut.problem:
                raise BrokenRow(cut.problem)
            row = split_cells(cut.content.decode(), ",")
        except BrokenRow:
            told = True
            break
        found.append(row)
    assert (found, told) == (expected, broken)


@given(st.text('a,"\n\r', max_size=200), _chunk, st.sampled_from([1, 20, 70, 99]))
def test_any_bytes_are_cut_alike_whatever_the_blocks(text: str, size: int, most: int) -> None:
    content = text.encode()
    assert _cuts(content, size, ",", most) == _cuts(content, max(len(content), 1), ",", most)


@given(_table, _chunk, st.data())
def test_a_file_that_is_cut_off_keeps_the_rows_before(
    table: list[list[str]], size: int, data: st.DataObject
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(table)
    content = out.getvalue().encode()
    whole = _cuts(content, size)
    short = _cuts(content[: data.draw(st.integers(0, len(content)))], size)
    assert [cut.content for cut in short[:-1]] == [cut.content for cut in whole[: len(short)]][:-1]
    assert all(not cut.problem for cut in short[:-1])


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("id,text", ","),
        ("id;text;n", ";"),
        ("id\ttext", "\t"),
        ("id|text", "|"),
        ('"a;b;c",text', ","),
        ("text", ","),
    ],
)
def test_the_delimiter_is_that_of_the_first_row(header: str, delimiter: str) -> None:
    assert sniff_delimiter(header) == delimiter


def _read(
    folder: Path, content: str | bytes, name: str = "a.csv", **options: object
) -> tuple[list[Document], list[Rejected], FileSummary]:
    stored = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(stored)
    pieces = list(read_source([folder / name], ReadOptions(**options)))  # type: ignore[arg-type]
    documents = [one for one in pieces if isinstance(one, Document)]
    rejected = [one for one in pieces if isinstance(one, Rejected)]
    (seen,) = [one for one in pieces if isinstance(one, FileSummary)]
    return documents, rejected, seen


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n1,one\n2,two\n"),
        ("a.csv", "\ufeffid,text\r\n1,one\r\n2,two\r\n"),
        ("a.csv", "id;text\n1;one\n\n2;two"),
        ("a.tsv", "id\ttext\n1\tone\n2\ttwo\n"),
        ("a.csv", "id,text\r1,one\r2,two\r"),
        ("a.csv", 'id,"text"\n1,"one"\n2,two\n'),
        ("a.csv.gz", gzip.compress(b"id,text\n1,one\n2,two\n", mtime=0)),
        ("a.csv", "\ufeffid,text\n1,one\n2,two\n".encode("utf-16-le")),
    ],
)
def test_real_csv_files_are_read(tmp_path: Path, name: str, content: str | bytes) -> None:
    documents, rejected, _ = _read(tmp_path, content, name)
    assert [(one.text, one.columns) for one in documents] == [
        ("one", {"id": "1"}),
        ("two", {"id": "2"}),
    ]
    assert [one.id for one in documents] == [f"{name}:2", f"{name}:3"]  # the header is row 1
    assert not rejected


def test_quotes_hold_line_feeds_delimiters_and_quotes(tmp_path: Path) -> None:
    (document,), rejected, _ = _read(tmp_path, 'text,n\n"a, ""b""\nc",1\n')
    assert document.text == 'a, "b"\nc'
    assert not rejected


def test_a_delimiter_that_is_given_beats_the_first_row(tmp_path: Path) -> None:
    (document,), _, _ = _read(tmp_path, "text;a,b,c\none, two;x\n", delimiter=";")
    assert document.text == "one, two"


def test_prompts_and_answers(tmp_path: Path) -> None:
    content = "instruction,input,output\nAdd.,1 and 2,3\nGreet.,,Hello\n"
    documents, _, _ = _read(tmp_path, content, prompt="instruction", response="output")
    assert [one.text for one in documents] == ["Add.\n\n1 and 2\n\n3", "Greet.\n\nHello"]


@pytest.mark.parametrize(
    ("content", "kept", "reason", "detail"),
    [
        ("id,body\n1,a\n", 0, "no text", "no single column 'text' in the first row; found id"),
        ("text,text\na,b\n", 0, "no text", "found text, text"),
        ("id,text\n1\n2,b\n", 1, "wrong number of cells", "1 instead of 2"),
        ("id,text\n1,a,x\n2,b\n", 1, "wrong number of cells", "3 instead of 2"),
        ('id,text\n1,"a"x\n2,b\n', 1, "broken CSV", "cell 2: 'x' follows its closing quote"),
        ('id,text\n1,a\n2,"b\n3,c\n', 1, "broken CSV", "the file ends within quotes"),
        ("id,text\n1,\n2,b\n", 1, "empty", ""),
        ("id,text\n1," + "x" * 2000 + "\n2,b\n", 1, "too long", "over 1000 bytes"),
        (b"id,text\n1,\xff\n2,b\n", 1, "not UTF-8", ""),
        (b"id,text\n1,\0\n2,b\n", 1, "NUL bytes", ""),
        ("", 0, "empty file", ""),
        (gzip.compress(b"id,text\n1,a\n2,b\n" * 9, mtime=0)[:-12], 8, "cut off by damage", ""),
    ],
)  # fmt: skip
def test_wrong_rows_are_rejected(
    tmp_path: Path, content: str | bytes, kept: int, reason: str, detail: str
) -> None:
    documents, rejected, seen = _read(tmp_path, content, most_bytes=1000)
    if reason == "cut off by damage":
        assert seen.damage == "truncated gzip"
        return
    assert len(documents) == seen.documents == kept
    assert rejected[0].reason == reason
    assert detail in rejected[0].detail


def test_a_rejected_record_has_row_line_and_offset(tmp_path: Path) -> None:
    content = 'text\n"a\nb"\n\n"c"d\n'
    _, (rejected,), _ = _read(tmp_path, content)
    assert (rejected.row, rejected.line, rejected.offset) == (3, 5, content.index('"c"'))


def test_an_unclosed_quote_is_reported(tmp_path: Path) -> None:
    _, _, seen = _read(tmp_path, 'id,text\n1,a\n2,"b\n3,c\n')
    assert seen.damage == "unclosed quote"


def test_a_file_without_the_column_is_still_identified(tmp_path: Path) -> None:
    content = "id,body\n" + "1,a\n" * 1000
    _, _, seen = _read(tmp_path, content)
    assert seen.bytes == len(content)
    assert seen.blake3


def test_memory_is_bounded_by_the_row_not_by_the_file() -> None:
    def blocks() -> Iterator[bytes]:
        for _ in range(2000):
            yield b"1," + b"x" * 1000 + b"\n"
        yield b'2,"'
        for _ in range(2000):  # a cell that is far too long
            yield b"y\n" * 500

    tracemalloc.start()
    found = [cut.too_long for cut in CsvRows(blocks(), ",", 10_000)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [False] * 2000 + [True]
    assert most < 300_000  # of 4 MB
