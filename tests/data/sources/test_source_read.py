"""Sources: what is read, in which order, and what is kept aside with which reason."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from penstock import untrusted
from penstock.data.sources.documents import Document, FileSummary, Rejected, source_identity
from penstock.data.sources.find import RawFile
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_file, read_source
from penstock.errors import PenstockError
from penstock.extras import extra

orjson = pytest.importorskip("orjson")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")


class Got:
    def __init__(self, pieces: Iterator[Any]) -> None:
        listed = list(pieces)
        self.documents = [p for p in listed if isinstance(p, Document)]
        self.rejected = [p for p in listed if isinstance(p, Rejected)]
        self.seen = [p for p in listed if isinstance(p, FileSummary)]
        self.texts = [d.text for d in self.documents]
        self.reasons = [r.reason for r in self.rejected]


def got(path: Path, **options: Any) -> Got:
    return Got(read_source([path], ReadOptions(**options)))


def put(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


NOISE = random.Random(0)


def noise(size: int) -> str:
    """Text that does not pack well."""
    return NOISE.randbytes(size).hex()


PACK = {"": lambda b: b, ".gz": lambda b: gzip.compress(b, mtime=0), ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_jsonl_plain_and_packed(tmp_path: Path, suffix: str) -> None:
    content = PACK[suffix](b'{"text": "one", "n": 1, "deep": [1]}\n\n{"text": "two \\u00e9"}')
    result = got(put(tmp_path, f"a.jsonl{suffix}", content))
    assert result.documents == [
        Document(f"a.jsonl{suffix}:1", "one", {"n": 1, "deep": [1]}),
        Document(f"a.jsonl{suffix}:3", "two é", {}),
    ]
    assert not result.rejected
    (seen,) = result.seen
    assert (seen.bytes, seen.blake3) == (len(content), blake3(content).hexdigest())
    assert (seen.documents, seen.encodings, seen.damage) == (2, {"utf-8": 2}, "")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_members_and_zero_padding_are_one_file(tmp_path: Path, suffix: str) -> None:
    pack = PACK[suffix]
    content = pack(lines("one")) + pack(lines("two")) + bytes(600)
    assert got(put(tmp_path, f"a.jsonl{suffix}", content)).texts == ["one", "two"]


def test_a_packed_file_without_its_suffix_is_unpacked(tmp_path: Path) -> None:
    assert got(put(tmp_path, "a.jsonl", gzip.compress(lines("one")))).texts == ["one"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"', "broken JSON"),
        (b'{"text": "x\0"}', "NUL bytes"),
        (b'\0\0\0{"text": "x"}', "NUL bytes"),
        (b'{"text": "caf\xe9"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "broken JSON"),
        (b"[" * 3000, "broken JSON"),
        (b"[1]", "not an object"),
        (b'{"body": "x"}', "no text"),
        (b'{"text": 7}', "text is not a string"),
        (b'{"text": " \\n"}', "empty"),
        (b'{"text": "' + b"x" * 5000 + b'"}', "too long"),
    ],
)
def test_a_bad_line_is_rejected_and_its_neighbours_are_kept(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = put(tmp_path, "a.jsonl", lines("before") + line + b"\n" + lines("after"))
    result = got(path, most_bytes=4000)
    assert result.texts == ["before", "after"]
    (rejected,) = result.rejected
    assert (rejected.file, rejected.reason, rejected.line) == ("a.jsonl", reason, 2)
    assert rejected.offset == len(lines("before"))
    assert rejected.head == line[:64]
    assert result.seen[0].rejected == {reason: 1}


def test_other_encodings_are_tried_when_named(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", b'{"text": "caf\xe9"}\n' + lines("é"))
    result = got(path, encodings=("utf-8", "cp1252"))
    assert result.texts == ["café", "é"]
    assert result.seen[0].encodings == {"cp1252": 1, "utf-8": 1}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_byte_order_marks_decide_the_encoding(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(
        encoding, codecs.BOM_UTF32_LE if "32" in encoding else b""
    )
    text = json.dumps({"text": "ÿ😀"}, ensure_ascii=False) + "\n"
    content = mark + (text * 2).encode(encoding)
    assert got(put(tmp_path, "a.jsonl", content)).texts == ["ÿ😀", "ÿ😀"]
    cut = got(put(tmp_path, "b.jsonl", content[:-1] if mark else content))
    if mark:
        assert cut.seen[0].damage


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_archive_yields_its_complete_records(tmp_path: Path, suffix: str) -> None:
    many = [noise(50) for _ in range(5000)]
    content = PACK[suffix](lines(*many))
    result = got(put(tmp_path, f"a.jsonl{suffix}", content[: len(content) // 2]))
    assert 0 < len(result.texts) < len(many)
    assert result.texts == many[: len(result.texts)]
    kind = "gzip" if suffix == ".gz" else "zstd"
    assert result.reasons[-1] == f"truncated {kind}" == result.seen[0].damage
    assert set(result.reasons[:-1]) <= {"cut off by damage"}
    assert result.seen[0].blake3 == blake3(content[: len(content) // 2]).hexdigest()


def test_a_text_cut_off_by_damage_is_rejected(tmp_path: Path) -> None:
    content = gzip.compress(noise(100_000).encode())
    result = got(put(tmp_path, "a.txt.gz", content[:-20]))
    assert not result.documents
    assert result.reasons == ["cut off by damage", "truncated gzip"]


def test_a_wrong_suffix_and_trailing_garbage_are_damage(tmp_path: Path) -> None:
    assert got(put(tmp_path, "a.jsonl.gz", lines("x"))).reasons == ["not gzip"]
    tail = got(put(tmp_path, "b.jsonl.gz", gzip.compress(lines("x")) + b"garbage"))
    assert (tail.texts, tail.reasons) == (["x"], ["damaged gzip"])


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_stays_within_bounds(tmp_path: Path, suffix: str) -> None:
    import tracemalloc

    path = put(tmp_path, f"a.txt{suffix}", PACK[suffix](b" " * (128 << 20)))
    tracemalloc.start()
    result = got(path, most_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.reasons == ["too long"]
    assert peak < 48 << 20


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_unpacks_without_end_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    monkeypatch.setattr(untrusted, "MAX_RATIO", 100)
    bomb = lines("first") + lines("again") * (1 << 20)
    result = got(put(tmp_path, f"a.jsonl{suffix}", PACK[suffix](bomb)))
    assert result.texts[0] == "first"
    assert len(result.texts) < 1 << 20
    assert result.reasons[-1] == "unpacks to too much"
    assert result.seen[0].damage == "unpacks to too much"
    assert result.seen[0].blake3 == blake3((tmp_path / f"a.jsonl{suffix}").read_bytes()).hexdigest()
    beside = put(tmp_path, "b.jsonl", lines("other"))
    assert got(tmp_path).texts[-1] == "other", beside  # the rest of the source goes on


def test_a_table_that_unpacks_without_end_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    text = pa.DictionaryArray.from_arrays(
        pa.array([0] * 2000, pa.int32()), pa.array(["x" * (1 << 16)])
    )
    table = pa.table({"text": text})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    result = got(tmp_path / "a.parquet")
    assert len(result.texts) < 2000
    assert result.reasons[-1] == "damaged Parquet"
    assert "unpacks to too much" in result.rejected[-1].detail


@pytest.mark.parametrize("pack", ["zip", "bzip2", "xz"])
def test_other_archives_are_named(tmp_path: Path, pack: str) -> None:
    if pack == "zip":
        with zipfile.ZipFile(tmp_path / "a.jsonl", "w") as archive:
            archive.writestr("a.jsonl", lines("x"))
    else:
        packed = bz2.compress(lines("x")) if pack == "bzip2" else lzma.compress(lines("x"))
        put(tmp_path, "a.jsonl", packed)
    result = got(tmp_path / "a.jsonl")
    assert not result.documents
    assert result.reasons == [f"packed as {pack}"]


def test_text_files_whole_and_separated(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "one\r\ntwo\n\n three")
    assert got(path).documents == [Document("a.txt", "one\r\ntwo\n\n three")]
    by_line = got(path, separator="\n")
    assert [(d.id, d.text) for d in by_line.documents] == [
        ("a.txt:1", "one"),
        ("a.txt:2", "two"),
        ("a.txt:4", " three"),
    ]
    assert by_line.reasons == ["empty"]
    marked = put(tmp_path, "b.txt", "one<|end|>two<|end|>")
    assert got(marked, separator="<|end|>").texts == ["one", "two"]


def test_binary_and_empty_files(tmp_path: Path) -> None:
    assert got(put(tmp_path, "a.txt", b"a\0b")).reasons == ["NUL bytes"]
    assert got(put(tmp_path, "b.txt", b"")).reasons == ["empty file"]
    assert got(put(tmp_path, "c.txt", b"\xff\xfe")).documents == []
    assert got(put(tmp_path, "d.jsonl.gz", b"")).reasons == ["empty file"]
    assert got(put(tmp_path, "e.parquet", b"")).reasons == ["empty file"]


def test_folders_are_sorted_by_name_and_globs_match(tmp_path: Path) -> None:
    for name in ["b.jsonl", "a/z.jsonl", "a.jsonl", "a/Z.jsonl", "ä.jsonl"]:
        put(tmp_path, name, lines(name))
    put(tmp_path, "picture.png", b"\x89PNG")
    result = got(tmp_path)
    assert result.texts == ["a.jsonl", "a/Z.jsonl", "a/z.jsonl", "b.jsonl", "ä.jsonl"]
    assert [(r.file, r.reason) for r in result.rejected] == [
        ("picture.png", "unknown kind of file")
    ]
    assert got(tmp_path / "**" / "z.jsonl").texts == ["a/z.jsonl"]
    assert got(tmp_path / "*.png", kind="text").reasons == ["not UTF-8"]


def test_links_pipes_and_hidden_files_are_rejected(tmp_path: Path) -> None:
    secret = put(tmp_path, "secret.jsonl", lines("secret"))
    inside = tmp_path / "in"
    put(inside, "a.jsonl", lines("a"))
    put(inside, "sub/b.jsonl", lines("b"))
    put(inside, ".hidden.jsonl", lines("hidden"))
    (inside / "out.jsonl").symlink_to(secret)
    (inside / "up").symlink_to(tmp_path)
    (inside / "round").symlink_to(inside)
    (inside / "loop.jsonl").symlink_to(inside / "loop.jsonl")
    (inside / "gone.jsonl").symlink_to(inside / "nowhere")
    (inside / "near.jsonl").symlink_to(inside / "a.jsonl")
    os.mkfifo(inside / "pipe.jsonl")
    put(inside, "x\n.jsonl", lines("odd name"))
    (Path(os.fsdecode(os.fsencode(inside) + b"/\xff.jsonl"))).write_bytes(lines("bytes"))
    result = got(inside)
    assert result.texts == ["a", "a", "b", "odd name", "bytes"]
    assert {r.file: r.reason for r in result.rejected} == {
        ".hidden.jsonl": "hidden",
        "out.jsonl": "outside of the source",
        "up": "outside of the source",
        "round": "link to a folder",
        "loop.jsonl": "cannot be read",
        "gone.jsonl": "cannot be read",
        "pipe.jsonl": "not a regular file",
    }
    climbing = got(inside / "*" / ".." / ".." / "secret.jsonl")
    assert not climbing.documents
    assert set(climbing.reasons) == {"outside of the source"}


def test_a_file_replaced_by_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    result = Got(read_file(RawFile("a.jsonl", str(tmp_path / "a.jsonl"), "jsonl")))
    assert result.reasons == ["cannot be read"]
    assert result.seen[0].blake3 == ""


def test_mistakes_of_the_user_are_reported(tmp_path: Path) -> None:
    for make in [
        lambda: got(tmp_path / "nothing.jsonl"),
        lambda: got(tmp_path / "*.jsonl"),
        lambda: got(tmp_path, kind="word"),
        lambda: ReadOptions(encodings=("rot13",)),
        lambda: ReadOptions(encodings=()),
        lambda: ReadOptions(separator=""),
        lambda: ReadOptions(most_bytes=0),
        lambda: extra("no_such_package", "Reading"),
    ]:
        with pytest.raises(PenstockError):
            make()


def test_parquet_files_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", None, " ", "four"], "n": [1, 2, 3, 4], "s": list("abcd")})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    result = got(path)
    assert result.documents == [
        Document("a.parquet:1", "one", {"n": 1, "s": "a"}),
        Document("a.parquet:4", "four", {"n": 4, "s": "d"}),
    ]
    assert [(r.reason, r.line) for r in result.rejected] == [("no text", 2), ("empty", 3)]
    assert result.seen[0].blake3 == blake3(path.read_bytes()).hexdigest()
    assert got(path, columns=("n", "m")).documents[0].columns == {"n": 1, "m": None}
    assert got(path, text="n").reasons == ["text is not a string"]
    assert got(path, text="body").reasons == ["no text"]


def test_parquet_with_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    wrong = pa.array([b"caf\xe9", b"fine"]).view(pa.string())
    table = pa.table({"text": pa.array(["x", "y"]), "tag": wrong})
    pq.write_table(table, tmp_path / "a.parquet")
    result = got(tmp_path / "a.parquet")
    assert (result.texts, result.reasons) == (["y"], ["column cannot be read"])
    as_text = got(tmp_path / "a.parquet", text="tag")
    assert (as_text.texts, as_text.reasons) == (["fine"], ["not UTF-8"])


def test_a_damaged_row_group_loses_only_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"the text of row {row}" for row in range(30)]
    pq.write_table(
        pa.table({"text": texts}),
        path,
        row_group_size=10,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    content[content.index(texts[15].encode())] ^= 0xFF
    path.write_bytes(content)
    result = got(path)
    assert result.texts == texts[:10] + texts[20:]
    assert result.reasons == ["damaged Parquet"]
    assert (result.rejected[0].line, result.seen[0].damage) == (11, "damaged Parquet")


def test_another_store_can_be_read_through_open_file(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError("connection reset")
            return super().read(size)

    file = RawFile("far.jsonl", "s3://bucket/far.jsonl", "jsonl")
    fine = Got(read_file(file, open_file=lambda f: io.BytesIO(lines(f.path))))
    assert fine.texts == ["s3://bucket/far.jsonl"]
    broken = Got(read_file(file, open_file=lambda f: Failing(lines("a", "b") + b'{"text": "c')))
    assert broken.texts == ["a", "b"]
    assert broken.reasons == ["cut off by damage", "cannot be read"]
    assert broken.seen[0].blake3 == ""


def test_the_identity_is_of_names_and_content_in_any_order(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", lines("a"))
    put(tmp_path, "b.jsonl", lines("b"))
    first = got(tmp_path).seen
    assert source_identity(first) == source_identity(reversed(first))
    put(tmp_path, "b.jsonl", lines("c"))
    assert source_identity(got(tmp_path).seen) != source_identity(first)
    (tmp_path / "b.jsonl").rename(tmp_path / "c.jsonl")
    put(tmp_path, "c.jsonl", lines("b"))
    assert source_identity(got(tmp_path).seen) != source_identity(first)
