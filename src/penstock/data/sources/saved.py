"""Datasets that the `datasets` library saved to disk: Arrow files, and files that describe them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.data.sources.files import Found
from penstock.untrusted import read_json

_DESCRIBE = {b"state.json", b"dataset_info.json", b"dataset_dict.json"}


def without_descriptions(found: list[Found], split: str) -> Iterator[Found]:
    """The same entries; those that are no data of a saved dataset, or of another split, say so."""
    saved = {}  # folder → the names of its data files
    for entry in found:
        folder, _, name = entry.name.rpartition(b"/")
        if name == b"state.json" and (listed := _data_files(Path(entry.path))) is not None:
            saved[folder] = listed
    for entry in found:
        folder, _, name = entry.name.rpartition(b"/")
        if entry.problem or not saved:
            yield entry
        elif name in _DESCRIBE:
            yield replace(entry, problem="not data: describes a saved dataset")
        elif folder in saved and name not in saved[folder]:
            yield replace(entry, problem="not data: no file that the saved dataset names")
        elif split and folder and folder.split(b"/")[0] != split.encode():
            yield replace(entry, problem=f"another split: not {split!r}")
        else:
            yield entry


def _data_files(state: Path) -> set[bytes] | None:
    try:
        files = read_json(state)["_data_files"]
        return {str(file["filename"]).encode() for file in files}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # some other state.json
