"""What the rows of raw files are, by the fields of the first one: text, conversations, or prompts
with their answers.

For who names a file without a recipe. The first row decides for all: rows that are otherwise are
kept aside and counted, as in any build.
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
# A prompt and its answer, as the usual collections call them.
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("input", "output"),
)
_LOOK_AT = 20  # files, and rows of each: the first ones may be damaged


def guess_fields(path: str) -> dict[str, str]:
    """Fields of `[[source]]` for the files there: {"messages": …}, or {"prompt": …, "response": …};
    nothing for plain text, and for what cannot be looked at."""
    try:
        found = [one for one in find_files([path]) if isinstance(one, RawFile)]
    except PenstockError:  # told by the build itself
        return {}
    for file in [one for one in found if one.kind in ("jsonl", "csv", "parquet")][:_LOOK_AT]:
        if names := _names(file):
            return _meaning(names)
    return {}


def _meaning(names: set[str]) -> dict[str, str]:
    for field in CONVERSATIONS:
        if field in names:
            return {"messages": field}
    if TEXT in names:
        return {}
    for prompt, response in PAIRS:
        if {prompt, response} <= names:
            return {"prompt": prompt, "response": response}
    return {}


def _names(file: RawFile) -> set[str]:
    """The fields of the file's first row; none where that cannot be told."""
    if file.kind == "parquet":
        return _of_table(file)
    try:
        with open_file(file) as stored:
            blocks = FileBlocks(stored, file.packing)
            if file.kind == "csv":
                return set(CsvTable(file, blocks, ReadOptions()).columns())
            rows = islice(JsonRows(blocks, ReadOptions().most_bytes), _LOOK_AT)
            found = (_of_line(row.content) for row in rows)
            return next((names for names in found if names), set())
    except (OSError, RejectedRow):  # told by the build itself
        return set()


def _of_line(content: bytes) -> set[str]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        return set()
    return set(row) if isinstance(row, dict) else set()


def _of_table(file: RawFile) -> set[str]:
    try:
        from pyarrow import parquet
    except ImportError:  # told by the build itself
        return set()
    try:
        with open_file(file) as stored:
            return set(parquet.read_schema(stored).names)
    except (OSError, ValueError, KeyError, MemoryError):  # of what is no Parquet
        return set()
