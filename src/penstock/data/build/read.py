"""Stage 2, read: each group of files becomes raw parts of bounded size and one small result.

Nothing in a file stops a build: records that cannot be read are counted, and the first of each kind
are kept aside for inspection.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from penstock.data.build.listing import BuildSource, SourceFile
from penstock.data.build.parts import (
    DocumentPart,
    Extras,
    nested_deeper_than,
    read_result,
    result_columns,
    result_of,
)
from penstock.data.format.columns import Columns, write_columns
from penstock.data.format.manifest import Json
from penstock.data.sources.documents import Document, FileSummary, Rejected, source_identity
from penstock.data.sources.messages import CONVERSATION_COLUMN, Conversation
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_file
from penstock.data.store.object_path import map_places
from penstock.data.workers.pool import Task

_ASIDE = 20  # records kept per reason and group
_DOCUMENT_BYTES = 256  # memory of a document besides its text and columns
_DEEPEST = 100  # nested lists and objects; deeper ones would overflow the stack of later stages
_LOOKED_AT_BYTES = 16 << 20  # larger text files are not read for the check
_TOO_DEEP = "columns nested too deep"


@dataclass(frozen=True)
class RawPart:
    """A part of documents as they were read."""

    path: Path
    source: int
    documents: int
    bytes: int  # of text


_CLOSED = ("cannot be read", "cannot be listed")  # reasons of files and folders that did not open


@dataclass(frozen=True)
class SourceTotals:
    """Totals of one source after reading."""

    files: int
    bytes: int  # as stored
    documents: int
    rejected: dict[str, int]
    encodings: dict[str, int]
    damaged: list[str]
    identity: str  # BLAKE3 of the names and contents of its files
    warnings: list[str]  # files that gave nothing, or that broke off


@dataclass(frozen=True)
class ReadResult:
    """All parts and the totals of each source."""

    parts: tuple[RawPart, ...]
    sources: tuple[SourceTotals, ...]


def read_tasks(
    sources: tuple[BuildSource, ...], folder: Path, part_bytes: int
) -> list[tuple[int, Task]]:
    """Return (source, task) for each group of files."""
    tasks: list[tuple[int, Task]] = []
    for number, source in enumerate(sources):
        for group in source.groups(part_bytes):
            name = f"{len(tasks):06d}"
            args = (group, source.options, source.key, folder / "raw" / name, part_bytes)
            size = sum(item.bytes for item in group)
            task = Task(folder / "read" / name, read_files, args, size, _count_read)
            tasks.append((number, task))
    return tasks


def read_files(
    group: tuple[SourceFile, ...], options: ReadOptions, key: str, parts_at: Path, part_bytes: int
) -> Columns:
    """Read a group of files and write its raw parts; return what they hold."""
    parts = _PartWriter(parts_at, part_bytes, f"{key}/" if key else "")
    seen: list[FileSummary] = []
    aside: list[dict[str, Json]] = []
    kept_aside: Counter[str] = Counter()
    for item in group:
        refused = 0  # documents of this file
        for piece in read_file(item.file, options):
            if isinstance(piece, FileSummary):
                seen.append(_with_refused(piece, refused))
                continue
            if isinstance(piece, Document):
                if (extras := _extras(piece, options)) is not None:
                    parts.add(piece, extras)
                    continue
                refused += 1
                piece = Rejected(item.file.name, _TOO_DEEP, f"{piece.id}: over {_DEEPEST} times")
            kept_aside[piece.reason] += 1
            if kept_aside[piece.reason] <= _ASIDE:
                aside.append(_readable(piece))
    parts.write()
    return result_columns(
        {"parts": parts.done, "seen": [asdict(item) for item in seen], "aside": aside}
    )


def _count_read(columns: Columns) -> int:
    return sum(documents for documents, _ in result_of(columns)["parts"])


def _raw_part(group: Path, number: int) -> Path:
    return group.with_name(f"{group.name}-{number:04d}")


def find_no_document(
    sources: tuple[BuildSource, ...], max_rows: int
) -> tuple[ReadResult, dict[str, Json] | None] | None:
    """Read until the first document; return None if there is one.

    If there is none, return the totals that a build would find and the first rejected record.
    Return None too if `max_rows` rows do not decide it.
    """
    seen: list[list[FileSummary]] = [[] for _ in sources]
    aside = [_readable(item) for source in sources for item in source.aside[:1]]
    rows = 0
    for number, source in enumerate(sources):
        for item in source.files:
            if item.file.kind == "text" and item.bytes > _LOOKED_AT_BYTES:
                return None  # one document, which would be read as a whole
            for piece in read_file(item.file, source.options):
                if isinstance(piece, FileSummary):
                    seen[number].append(piece)
                    continue
                rows += 1
                if rows > max_rows or isinstance(piece, Document):
                    return None
                aside = aside or [_readable(piece)]
    totals = [_total(source, mine) for source, mine in zip(sources, seen, strict=True)]
    return ReadResult((), tuple(totals)), aside[0] if aside else None


def count_first_rows(
    sources: tuple[BuildSource, ...], max_rows: int, max_characters: int
) -> tuple[int, Counter[str], dict[str, Json] | None]:
    """Return how many of the first rows are documents, how many are not by reason, and the first
    that is not.

    Entries that are no readable files count as rows. Large text files are left out.
    """
    refused = [item for source in sources for item in source.aside]
    documents, characters = 0, 0
    for piece in _rows(sources):
        if isinstance(piece, Rejected):
            refused.append(piece)
        else:
            documents += 1
            characters += len(piece.text)
        if documents + len(refused) >= max_rows or characters > max_characters:
            break
    reasons = Counter(item.reason for item in refused)
    return documents, reasons, _readable(refused[0]) if refused else None


def _rows(sources: tuple[BuildSource, ...]) -> Iterator[Document | Rejected]:
    for source in sources:
        for item in source.files:
            if item.file.kind == "text" and item.bytes > _LOOKED_AT_BYTES:
                continue  # one document, which would be read as a whole
            for piece in read_file(item.file, source.options):
                if not isinstance(piece, FileSummary):
                    yield piece


class _PartWriter:
    """A writer of parts; each part has a bounded size on disk and in memory."""

    def __init__(self, path: Path, most_bytes: int, prefix: str) -> None:
        self.done: list[tuple[int, int]] = []  # documents and bytes of text
        self._path, self._most_bytes, self._prefix = path, most_bytes, prefix
        self._waiting: list[tuple[Document, bytes]] = []
        self._bytes = 0

    def add(self, document: Document, extras: bytes) -> None:
        size = len(document.text.encode()) + len(extras) + _DOCUMENT_BYTES
        if self._bytes + size > self._most_bytes:
            self.write()
        # The columns are in `extras`: as objects they would take many times the memory.
        self._waiting.append((replace(document, columns={}), extras))
        self._bytes += size

    def write(self) -> None:
        if not self._waiting:
            return
        columns = DocumentPart(
            texts=[document.text for document, _ in self._waiting],
            ids=[f"{self._prefix}{document.id}" for document, _ in self._waiting],
            extras=[extras for _, extras in self._waiting],
            scores=np.zeros(len(self._waiting), np.int64),
        ).columns()
        write_columns(_raw_part(self._path, len(self.done)), columns)
        self.done.append((len(self._waiting), len(columns["texts"])))
        self._waiting, self._bytes = [], 0


def _extras(document: Document, options: ReadOptions) -> bytes | None:
    """Return the stored extras of a document; None if they are nested too deeply."""
    columns = dict(document.columns)
    chat = columns.pop(CONVERSATION_COLUMN) if options.chat else None
    assert chat is None or isinstance(chat, dict)
    try:
        extras = Extras(columns, conversation=Conversation.from_column(chat) if chat else None)
        stored = extras.to_json()
    except RecursionError:
        return None
    # Every level opens a bracket: for most documents counting brackets is enough.
    deep = stored.count(b"[") + stored.count(b"{") > _DEEPEST
    return None if deep and nested_deeper_than(document.columns, _DEEPEST) else stored


def _with_refused(seen: FileSummary, refused: int) -> FileSummary:
    if not refused:
        return seen
    rejected = dict(sorted({**seen.rejected, _TOO_DEEP: refused}.items()))
    return replace(seen, documents=seen.documents - refused, rejected=rejected)


def combine_reads(tasks: list[tuple[int, Task]], sources: tuple[BuildSource, ...]) -> ReadResult:
    """Combine the results of the tasks in their order."""
    parts: list[RawPart] = []
    seen: list[list[FileSummary]] = [[] for _ in sources]
    paths = [task.path for _, task in tasks]
    results = map_places(read_result, paths, paths[0] if paths else None)
    for (number, task), result in zip(tasks, results, strict=True):
        raw = task.path.parent.parent / "raw"
        for place, (documents, size) in enumerate(result["parts"]):
            path = _raw_part(raw / task.path.name, place)
            parts.append(RawPart(path, number, documents, size))
        seen[number] += [FileSummary(**item) for item in result["seen"]]
    totals = [_total(source, mine) for source, mine in zip(sources, seen, strict=True)]
    return ReadResult(tuple(parts), tuple(totals))


def rejected_records(
    tasks: list[tuple[int, Task]], sources: tuple[BuildSource, ...]
) -> Iterator[dict[str, Json]]:
    """Yield the records that could not be read, source by source; the first of each reason."""
    shown: Counter[tuple[int, str]] = Counter()
    for source in sources:
        for item in source.aside:
            yield {"source": source.label, **_readable(item)}
    paths = [task.path for _, task in tasks]
    results = map_places(read_result, paths, paths[0] if paths else None)
    for (number, _), result in zip(tasks, results, strict=True):
        for record in result["aside"]:
            shown[number, record["reason"]] += 1
            if shown[number, record["reason"]] <= 50 * _ASIDE:
                yield {"source": sources[number].label, **record}


def _readable(piece: Rejected) -> dict[str, Json]:
    return {**asdict(piece), "head": piece.head.decode("utf-8", "backslashreplace")}


def _total(source: BuildSource, seen: list[FileSummary]) -> SourceTotals:
    rejected: Counter[str] = Counter(item.reason for item in source.aside)
    encodings: Counter[str] = Counter()
    for item in seen:
        rejected.update(item.rejected)
        encodings.update(item.encodings)
    return SourceTotals(
        files=len(seen),
        bytes=sum(item.bytes for item in seen),
        documents=sum(item.documents for item in seen),
        rejected=dict(sorted(rejected.items())),
        encodings=dict(sorted(encodings.items())),
        damaged=[f"{item.file}: {item.damage}" for item in seen if item.damage][:20],
        identity=source_identity(seen),
        warnings=[
            *(f"{item.file}: {item.reason}" for item in source.aside if item.reason in _CLOSED),
            *(warning for item in seen if (warning := _warning(item))),
        ],
    )


def _warning(seen: FileSummary) -> str:
    if seen.damage:
        return f"{seen.file}: {seen.damage}; {seen.documents} documents before that are kept"
    if seen.documents or not seen.rejected:
        return ""
    reasons = ", ".join(f"{reason} ({count})" for reason, count in seen.rejected.items())
    return f"{seen.file} gave no document: {reasons}"
