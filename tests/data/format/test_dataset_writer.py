import numpy as np
import pytest
from blake3 import blake3

from penstock.data.format.writer import DatasetWriter, unfinished_prefix
from penstock.errors import PenstockError


def finish(writer):
    return writer.finish({}, {}, {})


def test_nothing_has_a_name_before_finish_and_nothing_is_left_without_it(tmp_path):
    with DatasetWriter(tmp_path, "small", 10, b"{}") as writer:
        writer.add([1, 2, 3])
        assert [
            path.name.startswith(unfinished_prefix("small")) for path in tmp_path.iterdir()
        ] == [True]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), DatasetWriter(tmp_path, "small", 10, b"{}") as writer:
        writer.add([1 // 0])
    assert list(tmp_path.iterdir()) == []


def test_finish_leaves_only_the_dataset(tmp_path):
    with DatasetWriter(tmp_path, "small", 10, b"{}") as writer:
        writer.add([1, 2, 3])
        folder = finish(writer)
    assert list(tmp_path.iterdir()) == [folder]
    assert len(list((folder / "shards").iterdir())) == 3
    for path in (folder / "shards").iterdir():
        assert path.stem == blake3(path.read_bytes()).hexdigest()


def test_writing_the_same_again_keeps_the_first(tmp_path):
    folders = []
    for _ in range(2):
        with DatasetWriter(tmp_path, "small", 10, b"{}") as writer:
            writer.add([1, 2, 3])
            folders.append(finish(writer))
        (folders[0] / "mark").touch()
    assert folders[0] == folders[1]
    assert (folders[0] / "mark").exists()
    assert list(tmp_path.iterdir()) == [folders[0]]


def test_bad_documents_are_refused(tmp_path):
    with DatasetWriter(tmp_path, "small", 10, b"{}") as writer:
        for document in ([3, 10], [-1, 3]):
            with pytest.raises(PenstockError, match="outside the vocabulary of 10"):
                writer.add(document)
        for document in ([], [[1, 2]]):
            with pytest.raises(ValueError, match="row of tokens"):
                writer.add(np.array(document, dtype=np.int64))
    with pytest.raises(ValueError, match="multiple of 4"):
        DatasetWriter(tmp_path, "small", 1 << 20, b"{}", shard_bytes=6)
