"""Raw files in a real object store read, and build, as local ones do."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.data.build.build import build
from penstock.data.build.progress import SilentWatcher
from penstock.data.recipe.recipe import Recipe
from penstock.data.sources.find import find_files
from penstock.data.sources.read import read_source
from penstock.data.store.objects import Store
from penstock.errors import PenstockError, RunFailed

pytestmark = pytest.mark.s3


@pytest.fixture
def folder(s3, tmp_path):
    """The same files here and in the bucket."""
    root = tmp_path / "raw"
    (root / "more").mkdir(parents=True)
    texts = [f"Document {n} says something of its own, in a whole sentence." for n in range(3000)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (root / "a.jsonl").write_text(lines)
    (root / "more" / "b ü.jsonl.gz").write_bytes(gzip.compress(lines.upper().encode()))
    pq.write_table(pa.table({"text": texts}), root / "more" / "c.parquet", row_group_size=500)
    for path in root.rglob("*"):
        if path.is_file():
            Store("s3://data/raw").put(str(path.relative_to(root)), path)
    return root


def test_a_prefix_reads_as_the_folder(folder):
    assert list(read_source(["s3://data/raw"])) == list(read_source([folder]))


def test_globs_and_objects(folder):
    (file,) = find_files(["s3://data/raw/**/*.parquet"])
    assert file.name == "more/c.parquet"
    assert file.bytes == (folder / "more" / "c.parquet").stat().st_size
    assert list(read_source(["s3://data/raw/a.jsonl"])) == list(read_source([folder / "a.jsonl"]))


def test_what_cannot_be_listed(s3, folder, monkeypatch):
    with pytest.raises(PenstockError, match="no such object or bucket"):
        list(find_files(["s3://nowhere/raw"]))
    with pytest.raises(PenstockError, match="names no file"):
        list(find_files(["s3://data/other"]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    with pytest.raises(PenstockError, match="access was refused"):
        list(find_files(["s3://data/raw"]))


def test_a_build_from_the_bucket_is_the_build_from_disk(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))

    def recipe(path: str) -> Recipe:
        parts = {"source": [{"path": path}], "clean": {"preset": "none"}, "tokens": {"vocab": 400}}
        return Recipe.model_validate({"name": "prose", **parts})

    near = build(recipe(str(folder)), workers=1)
    far = build(recipe("s3://data/raw"), workers=2)
    assert far.id == near.id
    assert far.documents > 1000


def test_a_build_whose_credentials_run_out_stops_and_goes_on(s3, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    parts = {"clean": {"preset": "none"}, "tokens": {"vocab": 400}}

    def recipe(name: str, path: str) -> Recipe:
        return Recipe.model_validate({"name": name, "source": [{"path": path}], **parts})

    class Refusing(SilentWatcher):
        def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
            if name == "read":
                s3.do("refuse")

    try:
        with pytest.raises(RunFailed, match=r"access was refused.*give the same command again"):
            build(recipe("prose", "s3://data/raw"), workers=1, watcher=Refusing())
    finally:
        s3.do("accept")
    far = build(recipe("prose", "s3://data/raw"), workers=1)
    near = build(recipe("prose", str(folder)), workers=1)
    assert far.id == near.id
