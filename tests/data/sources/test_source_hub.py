"""`hf:org/name`, against a server that speaks the hub's endpoints to the real client."""

import json

import pytest

from hub_server import COMMIT, hub
from penstock.data.sources import hub as source_hub
from penstock.data.sources.documents import Document, Rejected
from penstock.data.sources.files import HubSelection, RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.read import read_file, read_source
from penstock.errors import PenstockError


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


BY_NAME = {
    "README.md": b"# about",
    ".gitattributes": b"",
    "dataset_infos.json": b"{}",
    "en/train-00000-of-00002.jsonl": lines("one"),
    "en/train-00001-of-00002.jsonl": lines("two"),
    "en/test-00000-of-00001.jsonl": lines("held"),
    "de/train-00000-of-00001.jsonl": lines("eins"),
    "notes.txt": b"not the data",
}
BY_CARD = {"x/a.jsonl": lines("a"), "x/b.jsonl": lines("b"), "c.jsonl": lines("c")}
CARD = {
    "configs": [
        {
            "config_name": "first",
            "data_files": [
                {"split": "train", "path": "x/a*"},
                {"split": "test", "path": ["x/b.jsonl"]},
            ],
        },
        {"config_name": "second", "data_files": "c.jsonl"},
    ]
}


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    repos = {"org/names": BY_NAME, "org/card": dict(BY_CARD), "org/none": {"a.csv": b"x"}}
    with hub(repos, {"org/card": CARD}) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        yield repos


@pytest.mark.parametrize(
    ("name", "choice", "texts"),
    [
        ("names", HubSelection(), ["eins", "held", "one", "two"]),
        ("names", HubSelection(split="train"), ["eins", "one", "two"]),
        ("names", HubSelection(subset="en"), ["held", "one", "two"]),
        ("names", HubSelection(subset="en", split="test"), ["held"]),
        ("card", HubSelection(), ["c", "a", "b"]),
        ("card", HubSelection(subset="first"), ["a", "b"]),
        ("card", HubSelection(subset="first", split="test"), ["b"]),
        ("card", HubSelection(split="train"), ["c", "a"]),
        ("card", HubSelection(revision=COMMIT, subset="second"), ["c"]),
    ],
)
@pytest.mark.usefixtures("endpoint")
def test_subsets_and_splits(name, choice, texts):
    pieces = list(read_source([f"hf:org/{name}"], choice=choice))
    assert [piece.text for piece in pieces if isinstance(piece, Document)] == texts
    assert not [piece for piece in pieces if isinstance(piece, Rejected)]


@pytest.mark.usefixtures("endpoint")
def test_files_are_pinned_and_downloaded_once(tmp_path):
    found = [
        f
        for f in find_files(["hf:org/names"], choice=HubSelection(split="test"))
        if isinstance(f, RawFile)
    ]
    (file,) = found
    assert file.path == f"hf://datasets/org/names@{COMMIT}/en/test-00000-of-00001.jsonl"
    assert source_hub.commit_of(file.path) == COMMIT
    assert file.bytes == len(BY_NAME[file.name])
    assert file.stamp
    assert len(list(read_file(file))) == 2
    assert any((tmp_path / "cache" / "hub").rglob("*.jsonl"))


def test_a_file_that_cannot_be_downloaded_is_rejected(endpoint):
    (file,) = find_files(["hf:org/card"], choice=HubSelection(subset="second"))
    del endpoint["org/card"]["c.jsonl"]
    rejected, seen = read_file(file)
    assert rejected.reason == seen.damage == "cannot be read"
    assert "cannot be downloaded" in rejected.detail


@pytest.mark.parametrize(
    ("given", "choice", "said"),
    [
        ("hf:org/nothing", HubSelection(), "no such dataset, or it is private"),
        ("hf:org/names", HubSelection(revision="v9"), "no revision 'v9'"),
        ("hf:org/none", HubSelection(), r"no Parquet, JSONL.*Found: a\.csv"),
        ("hf:org/names", HubSelection(split="dev"), "of split 'dev'"),
        ("hf:a b", HubSelection(), "Write hf:org/name"),
    ],
)
@pytest.mark.usefixtures("endpoint")
def test_a_source_that_cannot_be_listed_is_one_clear_error(given, choice, said):
    with pytest.raises(PenstockError, match=said):
        list(find_files([given], choice=choice))


def test_no_hub_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(PenstockError, match="hub cannot be reached"):
        list(find_files(["hf:org/names"]))
