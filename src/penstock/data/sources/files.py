"""Files of a source, local or remote."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file that can be opened and read."""

    name: str  # in document ids and records
    path: str  # for `open_file`: a path, a URL, or hf://datasets/org/name@commit/path
    kind: str  # text, jsonl, csv, parquet or arrow
    packing: str = ""  # gzip, zstd or empty, by the name
    bytes: int = -1  # stored size, if a listing gave it
    stamp: str = ""  # ETag or hash that changes with the content, if a listing gave it


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of a folder, bucket or repository, before it is known to be readable."""

    name: bytes  # relative to the path that the user gave
    path: str
    problem: str = ""  # why it must not be read: a reason, or `reason: detail`
    bytes: int = -1
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class HubSelection:
    """The part of a Hugging Face dataset to read; empty means all of it, at the main branch."""

    revision: str = ""
    subset: str = ""
    split: str = ""
