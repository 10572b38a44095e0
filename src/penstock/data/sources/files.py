"""A file of a source, wherever it lies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RawFile:
    name: str  # in ids and records
    path: str  # what `open_file` takes: a path, a URL, or hf://datasets/org/name@commit/path
    kind: str  # text, jsonl, csv, parquet or arrow
    packing: str = ""  # gzip, zstd or nothing, as the name says
    bytes: int = -1  # as stored, where a listing told it
    stamp: str = ""  # changes with the content, where a listing told it: ETag or hash


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of a listing."""

    name: bytes  # relative to what was given
    path: str
    problem: str = ""  # what speaks against reading it: a reason, or `reason: detail`
    bytes: int = -1
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class HubSelection:
    """Which part of a Hugging Face dataset is meant; empty: all of it, at the main branch."""

    revision: str = ""
    subset: str = ""
    split: str = ""
