"""JSON arrays and objects over several lines are read as rows, in bounded memory."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.json_rows import JsonRows
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_source

_MOST = 1 << 20
_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_rows = st.lists(st.dictionaries(st.text(max_size=4), _value, max_size=3), max_size=5)
_indent = st.sampled_from([None, 0, 2])
_chunk = st.integers(1, 40)


def _blocks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def _cuts(content: bytes, size: int, most: int = _MOST) -> tuple[list[object], bool]:
    rows = JsonRows(_blocks(content, size), most)
    return list(rows), rows.unclosed


@given(_rows, _indent, st.booleans(), _chunk)
def test_the_rows_of_an_array_are_those_of_json_loads(
    rows: list[dict[str, object]], indent: int | None, ascii_only: bool, size: int
) -> None:
    content = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    parser = JsonRows(_blocks(content, size), _MOST)
    cuts = list(parser)
    assert [json.loads(cut.content) for cut in cuts] == json.loads(content)
    assert not parser.unclosed
    assert not any(cut.problem or cut.too_long for cut in cuts)
    for cut in cuts:  # offset and line are those of its first byte
        assert content[cut.offset :].startswith(cut.content)
        assert cut.line == 1 + content.count(b"\n", 0, cut.offset)


@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=4), _value, min_size=1), min_size=1),
       _chunk)  # fmt: skip
def test_objects_over_several_lines_are_rows(rows: list[dict[str, object]], size: int) -> None:
    content = "\n".join(json.dumps(row, indent=2) for row in rows).encode()
    cuts = list(JsonRows(_blocks(content, size), _MOST))
    assert [json.loads(cut.content) for cut in cuts] == rows


@given(_rows.filter(bool), _indent, _chunk, st.data())
def test_a_cut_off_array_keeps_its_whole_rows(
    rows: list[dict[str, object]], indent: int | None, size: int, data: st.DataObject
) -> None:
    content = json.dumps(rows, indent=indent).encode()
    cut_at = data.draw(st.integers(content.index(b"[") + 1, len(content) - 1))
    short = content[:cut_at]
    cuts, unclosed = _cuts(short, size)
    assert unclosed
    whole = [cut for cut in cuts if not cut.problem]
    parsed = [json.loads(cut.content) for cut in whole]
    assert parsed == rows[: len(parsed)]
    assert len(cuts) - len(whole) <= 1
    assert (cuts, unclosed) == _cuts(short, 1)  # whatever the blocks


@given(st.text('[]{}",:\\\n 1a', max_size=200), _chunk, st.sampled_from([1, 20, 70, 99]))
def test_any_bytes_are_cut_alike_whatever_the_blocks(text: str, size: int, most: int) -> None:
    content = b"[{" + text.encode()
    assert _cuts(content, size, most) == _cuts(content, len(content), most)


@given(st.text('[]{}",:\\\n 1a', max_size=40), _chunk)
def test_rows_do_not_overlap_and_nothing_is_passed_over(text: str, size: int) -> None:
    content = b"[{" + text.encode()
    cuts = list(JsonRows(_blocks(content, size), _MOST))
    for before, after in pairwise(cuts):
        gap = content[before.offset + len(before.content) : after.offset]
        assert set(gap) <= set(b" \t\r\n,]")


def _read(path: Path, **options: object) -> tuple[list[Document], list[Rejected], FileSummary]:
    pieces = list(read_source([path], ReadOptions(**options)))  # type: ignore[arg-type]
    documents = [one for one in pieces if isinstance(one, Document)]
    rejected = [one for one in pieces if isinstance(one, Rejected)]
    (seen,) = [one for one in pieces if isinstance(one, FileSummary)]
    return documents, rejected, seen


def _write(folder: Path, content: str, name: str = "a.json") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    return path


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_gives_the_documents_of_its_lines(
    tmp_path: Path, name: str, indent: int | None
) -> None:
    rows = [{"text": f"page {n}", "n": n} for n in range(5)]
    documents, rejected, _ = _read(_write(tmp_path, json.dumps(rows, indent=indent), name))
    assert [(one.text, one.columns) for one in documents] == [
        (f"page {n}", {"n": n}) for n in range(5)
    ]
    assert [one.id for one in documents] == [f"{name}:{n}" for n in range(1, 6)]
    assert not rejected


def test_alpaca_rows_become_conversations(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hello"},
    ]
    path = _write(tmp_path, json.dumps(rows, indent=4))
    documents, _, _ = _read(path, prompt="instruction", response="output")
    assert [one.text for one in documents] == ["Add.\n\n1 and 2\n\n3", "Greet.\n\nHello"]


@pytest.mark.parametrize(
    ("content", "kept", "why"),
    [
        ('[{"text":"a"},]', 1, [("broken JSON", "there is no row after the last comma", 2)]),
        ('[{"text":"a"},,{"text":"b"}]', 2, [("broken JSON", "there is no row before", 2)]),
        ('[{"text":"a"},7,{"text":"b"}]', 2, [("not an object", "int", 2)]),
        ('[{"text":"a"},{"text":b},{"text":"c"}]', 2, [("broken JSON", "", 2)]),
        ('[{"text":"a"},{"text":"b]},\n{"text":"c"}]', 2, [("broken JSON", "", 2)]),
        ('[{"text":["a"},{"text":"b"}]', 1, [("broken JSON", "", 1)]),
        ('[{"text":"a"},{"text":"b"}', 2, [("truncated JSON array", "before the closing ]", None)]),
        ('[{"text":"a"},{"text":"b', 1, [("broken JSON", "the file ends within it", 2),
                                         ("truncated JSON array", "", None)]),
        ('[{"text":"a"}] and more', 1, [("broken JSON", "", 2)]),
        ("[]", 0, []),
        ("[", 0, [("truncated JSON array", "", None)]),
        ('{"data": [{"text": "a"}]}', 0, [("no text", "jq '.[\"data\"]' FILE > rows.json", None)]),
        ('{\n  "data": [\n    {"text": "a"}\n  ]\n}', 0, [("no text", "the list 'data' in it", 1)]),
    ],
)  # fmt: skip
def test_wrong_rows_are_rejected_with_their_position(
    tmp_path: Path, content: str, kept: int, why: list[tuple[str, str, int | None]]
) -> None:
    documents, rejected, seen = _read(_write(tmp_path, content))
    assert seen.documents == len(documents) == kept
    assert [(one.reason, one.row) for one in rejected] == [(one[0], one[2]) for one in why]
    for one, (_, detail, _) in zip(rejected, why, strict=True):
        assert detail in one.detail


def test_a_rejected_record_has_row_line_and_offset(tmp_path: Path) -> None:
    content = '[\n  {"text": "a"},\n  5\n]'
    _, (rejected,), _ = _read(_write(tmp_path, content))
    assert (rejected.row, rejected.line, rejected.offset) == (2, 3, content.index("5"))


def test_a_row_that_is_too_long_does_not_affect_its_neighbours(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": "b" * 5000}, {"text": "c"}]
    documents, rejected, _ = _read(_write(tmp_path, json.dumps(rows)), most_bytes=1000)
    assert [one.text for one in documents] == ["a", "c"]
    assert [(one.reason, one.row) for one in rejected] == [("too long", 2)]


def test_a_large_wrapper_object_is_rejected_with_a_hint(tmp_path: Path) -> None:
    content = json.dumps({"rows": [{"text": "b" * 5000}]})
    _, (rejected,), _ = _read(_write(tmp_path, content), most_bytes=1000)
    assert rejected.reason == "too long"
    assert "the list 'rows' in it" in rejected.detail


def test_memory_is_bounded_by_the_row_not_by_the_file() -> None:
    row = json.dumps({"text": "x" * 1000}).encode()

    def blocks() -> Iterator[bytes]:
        yield b"["
        for _ in range(2000):
            yield row + b","
        yield b'{"text": "'
        for _ in range(2000):  # one row that is far too long
            yield b"y" * 1000
        yield b'"}]'

    tracemalloc.start()
    rows = [cut.too_long for cut in JsonRows(blocks(), 10_000)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == [False] * 2000 + [True]
    assert most < 300_000  # of 4 MB
