"""Arrow files: what `datasets` saved to disk, and Feather."""

import json

import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.files import HubSelection, RawFile
from penstock.data.sources.read import read_file, read_source

TABLE = pa.table({"text": [f"row {n}" for n in range(700)], "n": list(range(700))})


def save(folder, table, files=1):
    """As Dataset.save_to_disk does."""
    folder.mkdir(parents=True)
    names = [f"data-{k:05}-of-{files:05}.arrow" for k in range(files)]
    rows = table.num_rows // files
    for k, name in enumerate(names):
        with pa.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table.slice(k * rows, rows), max_chunksize=300)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def documents(pieces):
    return [piece for piece in pieces if isinstance(piece, Document)]


def test_a_dataset_saved_to_disk(tmp_path):
    save(tmp_path / "saved", TABLE, files=2)
    (tmp_path / "saved" / "cache-1234.arrow").write_bytes(b"what map() left")
    pieces = list(read_source([tmp_path / "saved"]))
    found = documents(pieces)
    assert [one.text for one in found] == TABLE["text"].to_pylist()
    assert found[351].id == "data-00001-of-00002.arrow:2"
    assert found[351].columns == {"n": 351}
    assert [p.reason for p in pieces if isinstance(p, Rejected)] == ["not data"] * 3
    assert all(p.damage == "" for p in pieces if isinstance(p, FileSummary))


def test_splits_of_a_saved_dictionary(tmp_path):
    save(tmp_path / "all" / "train", TABLE.slice(0, 5))
    save(tmp_path / "all" / "test", TABLE.slice(5, 2))
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(documents(read_source([tmp_path / "all"]))) == 7
    chosen = documents(read_source([tmp_path / "all"], choice=HubSelection(split="test")))
    assert [one.columns["n"] for one in chosen] == [5, 6]


@pytest.mark.parametrize("packing", ["lz4", "zstd", "uncompressed"])
def test_feather_files_are_read(tmp_path, packing):
    pyarrow.feather.write_feather(TABLE, tmp_path / "a.feather", compression=packing)
    assert [one.text for one in documents(read_source([tmp_path]))] == TABLE["text"].to_pylist()


def test_a_missing_text_column_is_reported(tmp_path):
    save(tmp_path / "saved", TABLE.rename_columns(["content", "n"]))
    reason = next(read_source([tmp_path / "saved" / "data-00000-of-00001.arrow"]))
    assert isinstance(reason, Rejected)
    assert (reason.reason, "content" in reason.detail) == ("no text", True)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrow") / "saved"
    save(folder, TABLE.slice(0, 40))
    return next(folder.glob("*.arrow"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_mangled_file_never_raises(stored, data):
    content = bytearray(stored.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = stored.parent / "mangled.arrow"
    path.write_bytes(content)
    pieces = list(read_file(RawFile("m.arrow", str(path), "arrow")))
    assert isinstance(pieces[-1], FileSummary)
    assert pieces[-1].documents == len(documents(pieces)) <= 40
