"""Copies of a dataset in a store: whole or not to be opened, resumed, read back."""

import numpy as np
import pytest

from made_masks import with_masks
from penstock.data.build import copy as remote_copy
from penstock.data.read.dataset import Dataset
from penstock.data.store import objects
from penstock.data.store.cache import Cache
from penstock.errors import PenstockError, RunFailed


@pytest.fixture
def local(dataset):
    made = dataset([np.arange(100), np.arange(60)], shard_bytes=120)
    return with_masks(made.folder, np.arange(160) % 2 == 0)


class Told:
    def __init__(self):
        self.stages, self.notes, self.bytes = [], [], 0

    def stage(self, name, total_bytes, total_documents):
        self.stages.append((name, total_bytes, total_documents))

    def did(self, documents, bytes):
        self.bytes += bytes

    def note(self, text):
        self.notes.append(text)


def test_a_copy_is_the_dataset(local, tmp_path):
    told = Told()
    (local.folder / "build.json").write_text("{}")
    url = remote_copy.copy_dataset(local, f"file://{tmp_path}/far/", told)
    assert url == f"file://{tmp_path}/far/{local.id}"
    far = Dataset.open(url, Cache(tmp_path / "cache", 1 << 20))
    assert far.id == local.id
    assert np.array_equal(far.read(0, 160), local.read(0, 160))
    assert far.verify() == []
    assert [name for name, _, _ in told.stages] == ["copy", "verify"]
    assert told.bytes == sum(total for _, total, _ in told.stages)
    near = {path.relative_to(local.folder) for path in local.folder.rglob("*")}
    copied = tmp_path / "far" / local.id
    assert {path.relative_to(copied) for path in copied.rglob("*")} == near


def test_an_interrupted_copy_cannot_be_opened_and_continues(local, tmp_path, monkeypatch):
    real, sent = objects.Store.put, []

    def put(self, name, content):
        sent.append(name)
        if len(sent) == 4:
            raise ConnectionError(110, "cut")
        real(self, name, content)

    monkeypatch.setattr(objects.Store, "put", put)
    with pytest.raises(RunFailed, match=r"not copied in full: cut\. Give the same command again"):
        remote_copy.copy_dataset(local, f"file://{tmp_path}/far")
    cache = Cache(tmp_path / "cache", 1 << 20)
    with pytest.raises(PenstockError, match="not a complete one"):
        Dataset.open(f"file://{tmp_path}/far/{local.id}", cache)
    url = remote_copy.copy_dataset(local, f"file://{tmp_path}/far")
    assert Dataset.open(url, cache).verify() == []
    assert len([name for name in sent if name == sent[0]]) == 1
    assert sent[-1] == "manifest.json"


def test_a_wrong_file_of_the_right_size_is_sent_again(local, tmp_path):
    url = remote_copy.copy_dataset(local, f"file://{tmp_path}/far")
    path = next((tmp_path / "far" / local.id / "shards").glob("*.bin"))
    path.write_bytes(bytes(len(path.read_bytes())))
    told = Told()
    assert remote_copy.copy_dataset(local, f"file://{tmp_path}/far", told) == url
    assert path.name in told.notes[0]
    assert Dataset.open(url, Cache(tmp_path / "cache", 1 << 20)).verify() == []


def test_a_copy_to_something_other_than_a_url_is_refused(local):
    with pytest.raises(PenstockError, match="is not a URL"):
        remote_copy.copy_dataset(local, "/some/folder")
