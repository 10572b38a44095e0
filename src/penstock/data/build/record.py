"""`build.json`: the record of a build, beside the manifest and not part of the version.

It holds what reports show and content does not decide: times, the machine, the places of sources,
histograms, and a few sample documents. Samples are the documents with the smallest hashes of their
ids, so they do not depend on the number of workers.
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
class BuildMachine:
    """The machine that built a dataset."""

    host: str
    system: str
    python: str
    cores: int
    workers: int
    memory_bytes: int  # peak of the main process or of one worker, whichever is larger


@dataclass(frozen=True)
class SourceRecord:
    """Totals of one `[[source]]` of the recipe."""

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
    """Counts and times of one stage; `kept` and the counts of `reasons` add up to `documents`."""

    name: str  # read, clean, deduplicate, decontaminate, tokenize, shard
    seconds: float  # wall time in the attempt that finished the build
    tasks: int
    tasks_before: int  # done by an earlier attempt
    bytes: int  # of text that went in
    documents: int  # that went in
    kept: int
    reasons: dict[str, int]  # why documents went, by name


# Columns that Penstock itself defines. A user's column of such a name, or with the name of a label,
# is shown and requested as `columns.NAME`.
OWN_COLUMNS = ("id", "source", "score", "language", "tokens")


def visible_columns(columns: Mapping[str, _T], labels: Mapping[str, _T]) -> dict[str, _T]:
    """Return labels and the user's columns together; clashing names become `columns.NAME`."""
    found = dict(labels)
    for name, value in sorted(columns.items(), key=lambda item: item[0] in (*OWN_COLUMNS, *labels)):
        while name in OWN_COLUMNS or name in found:
            name = f"columns.{name}"
        found[name] = value
    return found


@dataclass(frozen=True)
class SampleDocument:
    """The beginning of a document and what is known about it, to show to people."""

    id: str
    source: str
    text: str  # the beginning
    characters: int  # of the whole text
    score: int  # thousandths
    language: str  # empty if it was not identified
    columns: dict[str, Json]  # the user's columns and labels: `visible_columns`
    detail: str = ""  # of a dropped document: the measure, the copy that stays, the evaluation


@dataclass(frozen=True)
class BuildRecord:
    """The whole record of a build; the fields are those of `build.json`."""

    dataset: str  # name@version
    ended: str  # UTC, ISO 8601
    seconds: float  # wall time of the attempt that finished the build
    machine: BuildMachine
    sources: list[SourceRecord]
    stages: list[StageRecord]
    changes: dict[str, int]  # repair.mojibake, personal.email, boilerplate.cookies … → documents
    # Histograms of the documents in the dataset: bin i counts [2^i, 2^(i+1)), bin 0 also 0.
    characters: list[int]
    tokens: list[int]
    scores: list[int]  # of documents that were kept by cleaning; bins of SCORE_BIN thousandths
    languages: dict[str, int]  # of the same documents
    kept: list[SampleDocument]
    dropped: dict[str, list[SampleDocument]]  # "stage: reason" → a few
    recipe: dict[str, Json]  # the whole recipe with its paths, for people to read
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def visible(self) -> "BuildRecord":
        """Return it without secrets of sources and recipe: a record travels with its dataset."""
        sources = [SourceRecord(**redact_all(asdict(one))) for one in self.sources]
        recipe, notes = redact_all(self.recipe), redact_all(self.notes)
        return replace(self, sources=sources, recipe=recipe, notes=notes)

    def to_json(self) -> bytes:
        told = json.dumps(asdict(self.visible()), indent=1, ensure_ascii=False) + "\n"
        return told.encode("utf-8", "backslashreplace")  # a path may hold bytes that are no text


def read_build_record(folder: Path) -> BuildRecord | None:
    """Read the record of a dataset; None if it has none (copied without it, or built otherwise)."""
    path = folder / BUILD_RECORD
    try:
        content = read_bounded(path, INDEX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise PenstockError(f"{path} cannot be read as the record of a build: {error}.") from None
    return parse_build_record(content, str(path))


def parse_build_record(content: bytes, where: str) -> BuildRecord:
    try:
        stored = parse_json(content)
        if stored["format"] != FORMAT:
            raise ValueError(f"it has format {stored['format']!r}, not {FORMAT}")
        record = BuildRecord(
            **{
                **stored,
                "machine": BuildMachine(**stored["machine"]),
                "sources": _each(SourceRecord, stored["sources"]),
                "stages": _each(StageRecord, stored["stages"]),
                "kept": _each(SampleDocument, stored["kept"]),
                "dropped": {
                    why: _each(SampleDocument, some) for why, some in stored["dropped"].items()
                },
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
