"""Stage 2, read: each group of files becomes raw parts of bounded size and one small result.

Nothing in a file stops a build: what cannot be read is counted, and the first pieces of each kind
are kept aside to look at.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from penstock.data.build_list import Listed, Source
from penstock.data.build_parts import Extras, Part, read_result, result
from penstock.data.build_work import Task
from penstock.data.dedup_columns import Columns, write_columns
from penstock.data.manifest import Json
from penstock.data.source_options import Options
from penstock.data.source_pieces import Document, Rejected, Seen, identity
from penstock.data.source_read import read_file

_ASIDE = 20  # records kept of each reason and group


@dataclass(frozen=True)
class RawPart:
    path: Path
    source: int
    documents: int
    bytes: int  # of text


@dataclass(frozen=True)
class ReadSource:
    """What reading found in one source."""

    files: int
    bytes: int  # as stored
    documents: int
    rejected: dict[str, int]
    encodings: dict[str, int]
    damaged: list[str]
    identity: str  # BLAKE3 of the names and contents of its files


@dataclass(frozen=True)
class Reading:
    parts: tuple[RawPart, ...]
    sources: tuple[ReadSource, ...]


def read_tasks(
    sources: tuple[Source, ...], folder: Path, part_bytes: int
) -> list[tuple[int, Task]]:
    """(source, task) for each group of files."""
    tasks: list[tuple[int, Task]] = []
    for number, source in enumerate(sources):
        for group in source.groups(part_bytes):
            name = f"{len(tasks):06d}"
            args = (group, source.options, source.key, str(folder / "raw" / name), part_bytes)
            size = sum(one.bytes for one in group)
            tasks.append((number, Task(folder / "read" / name, read_group, args, size)))
    return tasks


def read_group(
    group: tuple[Listed, ...], options: Options, key: str, parts_at: str, part_bytes: int
) -> Columns:
    """Writes the raw parts, then says what they are."""
    parts: list[tuple[int, int]] = []
    seen: list[Seen] = []
    aside: list[dict[str, Json]] = []
    kept_aside: Counter[str] = Counter()
    waiting: list[Document] = []
    size = 0
    for one in group:
        for piece in read_file(one.file, options):
            if isinstance(piece, Document):
                length = len(piece.text.encode())
                if waiting and size + length > part_bytes:
                    parts.append(_write(f"{parts_at}-{len(parts):04d}", waiting, key))
                    waiting, size = [], 0
                waiting.append(piece)
                size += length
            elif isinstance(piece, Seen):
                seen.append(piece)
            else:
                kept_aside[piece.reason] += 1
                if kept_aside[piece.reason] <= _ASIDE:
                    aside.append(_readable(piece))
    if waiting:
        parts.append(_write(f"{parts_at}-{len(parts):04d}", waiting, key))
    return result({"parts": parts, "seen": [asdict(one) for one in seen], "aside": aside})


def reading(tasks: list[tuple[int, Task]], sources: tuple[Source, ...]) -> Reading:
    """What the tasks found, put together in their order."""
    parts: list[RawPart] = []
    seen: list[list[Seen]] = [[] for _ in sources]
    for number, task in tasks:
        found = read_result(task.path)
        raw = task.path.parent.parent / "raw"
        for place, (documents, size) in enumerate(found["parts"]):
            path = raw / f"{task.path.name}-{place:04d}"
            parts.append(RawPart(path, number, documents, size))
        seen[number] += [Seen(**one) for one in found["seen"]]
    totals = [_total(source, mine) for source, mine in zip(sources, seen, strict=True)]
    return Reading(tuple(parts), tuple(totals))


def records_aside(
    tasks: list[tuple[int, Task]], sources: tuple[Source, ...]
) -> Iterator[dict[str, Json]]:
    """What was kept aside, source by source; of each reason the first ones."""
    shown: Counter[tuple[int, str]] = Counter()
    for source in sources:
        for one in source.aside:
            yield {"source": source.label, **_readable(one)}
    for number, task in tasks:
        for record in read_result(task.path)["aside"]:
            shown[number, record["reason"]] += 1
            if shown[number, record["reason"]] <= 50 * _ASIDE:
                yield {"source": sources[number].label, **record}


def _write(path: str, documents: list[Document], key: str) -> tuple[int, int]:
    prefix = f"{key}/" if key else ""
    part = Part(
        texts=[document.text for document in documents],
        ids=[f"{prefix}{document.id}" for document in documents],
        extras=[Extras(document.columns).to_json() for document in documents],
        scores=np.zeros(len(documents), np.int64),
    )
    columns = part.columns()
    write_columns(Path(path), columns)
    return len(documents), len(columns["texts"])


def _readable(piece: Rejected) -> dict[str, Json]:
    return {**asdict(piece), "head": piece.head.decode("utf-8", "backslashreplace")}


def _total(source: Source, seen: list[Seen]) -> ReadSource:
    rejected: Counter[str] = Counter(one.reason for one in source.aside)
    encodings: Counter[str] = Counter()
    for one in seen:
        rejected.update(one.rejected)
        encodings.update(one.encodings)
    return ReadSource(
        files=len(seen),
        bytes=sum(one.bytes for one in seen),
        documents=sum(one.documents for one in seen),
        rejected=dict(sorted(rejected.items())),
        encodings=dict(sorted(encodings.items())),
        damaged=[f"{one.file}: {one.damage}" for one in seen if one.damage][:20],
        identity=identity(seen),
    )
