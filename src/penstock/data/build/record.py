"""`build.json`: the story of a build, beside the manifest and no part of the version.

Everything that a report shows and that content does not decide: times, the machine, where sources
lay, histograms, and a few documents to look at. Samples are those with the smallest hash of their
id, so they are the same however many workers there were.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from penstock.data.format.manifest import BUILD_RECORD, Json
from penstock.errors import PenstockError
from penstock.secret import redact_all
from penstock.untrusted import INDEX_BYTES, parse_json, read_bounded

FORMAT = 1
SCORE_BIN = 50  # thousandths
_T = TypeVar("_T")


@dataclass(frozen=True)
class Machine:
    host: str
    system: str
    python: str
    cores: int
    workers: int
    memory_bytes: int  # the most that the main process or one worker held at once


@dataclass(frozen=True)
class SourceRecord:
    """One `[[source]]` of the recipe."""

    name: str
    where: str  # as the recipe says
    files: int
    bytes: int  # as stored
    documents: int
    rejected: dict[str, int]  # reason → records, or files, that were kept aside
    encodings: dict[str, int]  # encoding → documents
    damaged: list[str]  # "file: what", the first few


@dataclass(frozen=True)
class StageRecord:
    """`kept` and the counts of `reasons` add up to `documents`."""

    name: str  # read, clean, deduplicate, decontaminate, tokenize, shard
    seconds: float  # wall time in the attempt that finished the build
    tasks: int
    tasks_before: int  # that an earlier attempt had done
    bytes: int  # of text that went in
    documents: int  # that went in
    kept: int
    reasons: dict[str, int]  # why documents went, by name


# What Penstock itself says of a document. A user's column of such a name, or of a label's, is shown
# and asked for as `columns.NAME`.
OWN = ("id", "source", "score", "language", "tokens")


def told_columns(columns: Mapping[str, _T], labels: Mapping[str, _T]) -> dict[str, _T]:
    """Return labels and the user's columns together, none of them in another's place."""
    found = dict(labels)
    for name, value in sorted(columns.items(), key=lambda item: item[0] in (*OWN, *labels)):
        while name in OWN or name in found:
            name = f"columns.{name}"
        found[name] = value
    return found


@dataclass(frozen=True)
class Sample:
    id: str
    source: str
    text: str  # the beginning
    characters: int  # of the whole text
    score: int  # thousandths
    language: str  # empty when it was not looked for
    columns: dict[str, Json]  # what was carried along, and labels: `told_columns`
    detail: str = ""  # of a dropped one: the measure, the copy that stays, the evaluation


@dataclass(frozen=True)
class Record:
    dataset: str  # name@version
    ended: str  # UTC, ISO 8601
    seconds: float  # wall time of the attempt that finished the build
    machine: Machine
    sources: list[SourceRecord]
    stages: list[StageRecord]
    changes: dict[str, int]  # repair.mojibake, personal.email, boilerplate.cookies … → documents
    # Of the documents in the dataset: bin i counts [2^i, 2^(i+1)), the first one 0 and 1.
    characters: list[int]
    tokens: list[int]
    scores: list[int]  # of documents that were kept by cleaning; bins of SCORE_BIN thousandths
    languages: dict[str, int]  # of the same documents
    kept: list[Sample]
    dropped: dict[str, list[Sample]]  # "stage: reason" → a few
    recipe: dict[str, Json]  # the whole recipe with its paths, for people to read
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def visible(self) -> "Record":
        """Return it without secrets of sources and recipe: a record travels with its dataset."""
        sources = [SourceRecord(**redact_all(asdict(one))) for one in self.sources]
        recipe, notes = redact_all(self.recipe), redact_all(self.notes)
        return replace(self, sources=sources, recipe=recipe, notes=notes)

    def to_json(self) -> bytes:
        told = json.dumps(asdict(self.visible()), indent=1, ensure_ascii=False) + "\n"
        return told.encode("utf-8", "backslashreplace")  # a path may hold bytes that are no text


def read_record(folder: Path) -> Record | None:
    """None for a dataset without one: it was copied without it, or built by other means."""
    path = folder / BUILD_RECORD
    try:
        content = read_bounded(path, INDEX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise PenstockError(f"{path} cannot be read as the record of a build: {error}.") from None
    return parse_record(content, str(path))


def parse_record(content: bytes, where: str) -> Record:
    try:
        stored = parse_json(content)
        if stored["format"] != FORMAT:
            raise ValueError(f"it has format {stored['format']!r}, not {FORMAT}")
        record = Record(
            **{
                **stored,
                "machine": Machine(**stored["machine"]),
                "sources": _each(SourceRecord, stored["sources"]),
                "stages": _each(StageRecord, stored["stages"]),
                "kept": _each(Sample, stored["kept"]),
                "dropped": {why: _each(Sample, some) for why, some in stored["dropped"].items()},
            }
        )
        return record.visible()  # an earlier version may have written them
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise PenstockError(
            f"{where} cannot be read as the record of a build: {str(error)[:200]}. "
            "Delete it (the dataset does not need it), or build the dataset again."
        ) from None


def _each(kind: type[_T], rows: list[dict[str, object]]) -> list[_T]:
    return [kind(**row) for row in rows]
