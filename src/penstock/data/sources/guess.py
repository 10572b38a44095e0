"""Guess what rows hold by the first row: text, conversations, prompts with responses, or pairs.

This is for users who name a file without a recipe. The first row decides for all files; rows with
other fields are rejected and counted, as in any build.
"""

import json
from itertools import islice

from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.csv import CsvTable, RejectedRow
from penstock.data.sources.files import RawFile
from penstock.data.sources.find import find_files, open_file
from penstock.data.sources.json_rows import JsonRows
from penstock.data.sources.options import ReadOptions
from penstock.errors import PenstockError

TEXT = ReadOptions().text
CONVERSATIONS = ("messages", "conversations", "conversation")
# Names of a prompt and its response in common datasets.
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("input", "output"),
)
CHOSEN, REJECTED = "chosen", "rejected"
PAIR = {"prompt": "prompt", CHOSEN: CHOSEN, REJECTED: REJECTED}
_LOOK_AT = 20  # files, and rows of each; the first ones may be damaged


def guess_fields(path: str, pairs: bool = False) -> dict[str, str]:
    """Return fields of `[[source]]`: {"messages": …}, {"prompt": …, "response": …}, or
    {"prompt": …, "chosen": …, "rejected": …}.

    `pairs` is whether pairs are wanted: rows may have them beside a conversation. The result is
    empty for plain text, and for files that cannot be read here.
    """
    return _fields_for(first_row_fields(path), pairs)


def first_row_fields(path: str) -> set[str]:
    """Return the fields of the first row that can be read; empty for text, or if none can."""
    try:
        found = [one for one in find_files([path]) if isinstance(one, RawFile)]
    except PenstockError:  # the build reports it
        return set()
    for file in [one for one in found if one.kind in ("jsonl", "csv", "parquet")][:_LOOK_AT]:
        if names := _field_names(file):
            return names
    return set()


def _fields_for(names: set[str], pairs: bool) -> dict[str, str]:
    is_pair = bool(names & {CHOSEN, REJECTED})  # one may be missing: the build says in which row
    if is_pair and pairs:
        return dict(PAIR)
    for field in CONVERSATIONS:
        if field in names:
            return {"messages": field}
    if TEXT in names:
        return {}
    for prompt, response in PAIRS:
        if {prompt, response} <= names:
            return {"prompt": prompt, "response": response}
    return dict(PAIR) if is_pair else {}


def _field_names(file: RawFile) -> set[str]:
    """Return the fields of the file's first row; empty if they cannot be read."""
    if file.kind == "parquet":
        return _parquet_columns(file)
    try:
        with open_file(file) as stored:
            blocks = FileBlocks(stored, file.packing)
            if file.kind == "csv":
                return set(CsvTable(file, blocks, ReadOptions()).columns())
            rows = islice(JsonRows(blocks, ReadOptions().most_bytes), _LOOK_AT)
            found = (_json_fields(row.content) for row in rows)
            return next((names for names in found if names), set())
    except (OSError, RejectedRow):  # the build reports it
        return set()


def _json_fields(content: bytes) -> set[str]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        return set()
    return set(row) if isinstance(row, dict) else set()


def _parquet_columns(file: RawFile) -> set[str]:
    try:
        from pyarrow import parquet
    except ImportError:  # the build reports it
        return set()
    try:
        with open_file(file) as stored:
            return set(parquet.read_schema(stored).names)
    except (OSError, ValueError, KeyError, MemoryError):  # not a Parquet file
        return set()
