"""Read a source: documents in a fixed order, rejected records, and a summary of each file.

Each file is read on its own, so files can go to any number of workers: the results, put together in
the order of `find_files`, are the same.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from penstock.data.sources import arrow, csv, parquet, text
from penstock.data.sources import json_file as jsonl
from penstock.data.sources.documents import Document, FileTally, Rejected, SourceItem
from penstock.data.sources.files import HubSelection, RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.find import open_file as open_any
from penstock.data.sources.options import ReadOptions

# Opens the stored bytes of a file; Parquet and Arrow also seek in them. If it raises OSError, the
# file is rejected.
OpenFile: TypeAlias = Callable[[RawFile], BinaryIO]

_READERS = {
    "text": text.read,
    "jsonl": jsonl.read,
    "csv": csv.read,
    "parquet": parquet.read,
    "arrow": arrow.read,
}


def read_source(
    paths: Iterable[str | Path],
    options: ReadOptions | None = None,
    open_file: OpenFile = open_any,
    choice: HubSelection | None = None,
) -> Iterator[SourceItem]:
    """Read all files of the given paths, folders, globs, URLs and hub names."""
    options = options or ReadOptions()
    for file in find_files(paths, options.kind, choice):
        if isinstance(file, Rejected):
            yield file
        else:
            yield from read_file(file, options, open_file)


def read_file(
    file: RawFile, options: ReadOptions | None = None, open_file: OpenFile = open_any
) -> Iterator[SourceItem]:
    """Read one file. The last item is its `FileSummary`."""
    tally = FileTally()
    for piece in _pieces(file, options or ReadOptions(), open_file, tally):
        if isinstance(piece, Rejected):
            tally.rejected[piece.reason] += 1
        else:
            tally.documents += 1
        yield piece
    yield tally.summary(file.name)


def _pieces(
    file: RawFile, options: ReadOptions, open_file: OpenFile, tally: FileTally
) -> Iterator[Document | Rejected]:
    try:
        stored = open_file(file)
    except OSError as error:
        tally.damage = "cannot be read"
        yield Rejected(file.name, tally.damage, error.strerror or str(error))
        return
    with stored:
        yield from _READERS[file.kind](file, stored, options, tally)
