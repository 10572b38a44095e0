"""Sources behind URLs: a fixed order, read as the local ones, and all of them or none."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.data.sources import remote
from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.files import RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_file, read_source
from penstock.data.store import objects
from penstock.errors import PenstockError, RunFailed
from range_server import serve


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


@pytest.fixture
def folder(tmp_path):
    """A bucket, so to speak."""
    root = tmp_path / "bucket" / "raw"
    (root / "b").mkdir(parents=True)
    (root / "b" / "2.jsonl").write_bytes(lines("b2"))
    (root / "b" / "10.jsonl.gz").write_bytes(gzip.compress(lines("b10")))
    (root / "a.txt").write_text("plain")
    (root / ".hidden").write_text("no")
    (root / "z.bin").write_bytes(b"no")
    rows = {"text": [f"row {n}" for n in range(1000)], "n": list(range(1000))}
    pq.write_table(pa.table(rows), root / "c.parquet", row_group_size=100)
    return root


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(objects.Store.__init__, "__defaults__", (0.5, objects.ANSWER_S))


def texts(pieces) -> list[str]:
    return [piece.text for piece in pieces if isinstance(piece, Document)]


def test_a_prefix_reads_as_the_folder_does(folder):
    near, far = list(read_source([folder])), list(read_source([f"file://{folder}"]))
    assert far == near
    assert texts(far)[:3] == ["plain", "b10", "b2"]
    assert len(texts(far)) == 1003
    assert {p.reason for p in far if isinstance(p, Rejected)} == {"hidden", "unknown kind of file"}
    assert list(read_source([f"file://{folder}/"])) == near


def test_a_listing_has_a_stamp_that_changes_with_the_content(folder):
    def stamps():
        return {
            f.name: (f.bytes, f.stamp)
            for f in find_files([f"file://{folder}"])
            if isinstance(f, RawFile)
        }

    before = stamps()
    assert before["a.txt"][0] == 5
    assert all(stamp for _, stamp in before.values())
    (folder / "a.txt").write_text("other")
    after = stamps()
    assert {name for name in before if before[name] != after[name]} == {"a.txt"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("b/*.jsonl*", ["b/10.jsonl.gz", "b/2.jsonl"]),
        ("**/*.jsonl", ["b/2.jsonl"]),
        ("**", ["a.txt", "b/10.jsonl.gz", "b/2.jsonl", "c.parquet"]),
        ("[ab].*", ["a.txt"]),
        ("[!b].txt", ["a.txt"]),
        ("?.parquet", ["c.parquet"]),
    ],
)
def test_globs_match_objects(folder, pattern, names):
    found = [f for f in find_files([f"file://{folder}/{pattern}"]) if isinstance(f, RawFile)]
    assert [f.path.removeprefix(f"file://{folder}/") for f in found] == names


def test_single_files_over_http(folder):
    with serve(folder) as (url, faults):
        given = [f"{url}/b/2.jsonl", f"{url}/c.parquet"]
        pieces = list(read_source(given))
        assert texts(pieces) == texts(read_source([folder / "b" / "2.jsonl", folder / "c.parquet"]))
        seen = [p for p in pieces if isinstance(p, FileSummary)]
        assert [one.file for one in seen] == ["2.jsonl", "c.parquet"]
        faults.ranges, faults.cut = False, 1  # the server of many a lab
        assert list(read_source(given)) == pieces


def test_a_large_file_is_read_in_chunks_and_survives_a_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(lines(*[f"text {n}" for n in range(500)]))
    with serve(tmp_path) as (url, faults):
        faults.cut, faults.busy = 1, 1
        assert texts(read_source([f"{url}/a.jsonl"])) == [f"text {n}" for n in range(500)]
        assert len(faults.asked) > 10


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_an_outage_stops_a_build_and_leaves_nothing_out(tmp_path, monkeypatch, name):
    """A file out of reach is not rejected like a damaged one: the network must not decide."""
    monkeypatch.setattr(remote, "CHUNK_BYTES", 1 << 16)
    words = [f"{n} " * 200 for n in range(3000)]
    if name == "a.jsonl":
        (tmp_path / name).write_bytes(lines(*words))
    else:
        pq.write_table(pa.table({"text": words}), tmp_path / name, row_group_size=100)
    with serve(tmp_path) as (url, faults):
        pieces = read_source([f"{url}/{name}"])
        next(pieces)
        faults.busy = 10_000
        with pytest.raises(RunFailed, match=r"was tried for.*503.*run the same command again"):
            list(pieces)
        with pytest.raises(RunFailed, match="cannot be read"):
            list(read_file(RawFile(name, f"{url}/{name}", name[2:], "")))
        faults.busy = 0
        assert texts(read_source([f"{url}/{name}"])) == words


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK_BYTES", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(*["x" * 1000] * 3000))
    pieces = read_source([f"file://{path}"])
    next(pieces)
    path.write_bytes(lines(*["y" * 1000] * 3000))
    seen = list(pieces)[-1]
    assert seen.damage == "cannot be read"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("file:///nowhere/at/all", "names no file"),
        ("http://127.0.0.1:1/a.jsonl", "cannot be listed.*was tried for"),
        ("http://127.0.0.1:1/*.jsonl", "cannot be listed.*no listing"),
        ("http://127.0.0.1:1/a.jsonl?download=true", "cannot be listed.*queries"),
    ],
)
def test_a_source_that_cannot_be_listed_is_one_clear_error(given, said):
    with pytest.raises(PenstockError, match=said):
        list(read_source([given], ReadOptions()))


def test_a_missing_page_is_named(tmp_path):
    with serve(tmp_path) as (url, _), pytest.raises(PenstockError, match="it is not there"):
        list(find_files([f"{url}/a.jsonl"]))


def test_expired_credentials_are_reported_at_once():
    """S3 answers with 400, as to a request that is wrong: not to be tried again for minutes."""
    answer = "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"
    found = objects._permanent_error(OSError(answer), "s3://bucket/a")
    assert isinstance(found, PermissionError)
    assert "s3://bucket/a: access was refused (ExpiredToken)" in str(found)
    assert objects._permanent_error(OSError("status code: 503"), "s3://bucket/a") is None
