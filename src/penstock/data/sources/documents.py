"""Results of reading a source: documents, rejected records with a reason, a summary per file.

Nothing in a file can stop a build, and nothing is dropped silently: each record of the input
becomes a `Document` or a `Rejected`, and each file ends with one `FileSummary`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from blake3 import blake3

HEAD_BYTES = 64  # of a rejected record that are kept


@dataclass(frozen=True, slots=True)
class Document:
    """One text and its other columns."""

    id: str  # file name and position: unique in a source, the same on every machine
    text: str  # valid Unicode, never empty
    columns: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record or file that could not be used, and the reason."""

    file: str
    reason: str  # one of a few short phrases, to count by
    detail: str = ""
    line: int | None = None  # of the unpacked text, from 1; for Parquet the row, from 1
    offset: int | None = None  # of the first byte, in the unpacked text
    head: bytes = b""  # the first bytes
    row: int | None = None  # from 1, where rows are not lines: JSON arrays and CSV


@dataclass(frozen=True, slots=True)
class FileSummary:
    """Counts and identity of a file that was read.

    `damage` is set if the tail could not be read. Records before it were delivered, but a checksum
    at the end of the file could not be verified for them.
    """

    file: str
    bytes: int  # as stored
    blake3: str  # of the bytes as stored; empty when they could not all be read
    documents: int
    rejected: dict[str, int]  # reason → records
    encodings: dict[str, int]  # encoding → documents
    damage: str = ""


SourceItem: TypeAlias = Document | Rejected | FileSummary


def source_identity(files: Iterable[FileSummary]) -> str:
    """Return the content identity of a source: BLAKE3 of its files' names and hashes, by name."""
    digest = blake3()
    for name, content in sorted((one.file.encode(), one.blake3.encode()) for one in files):
        digest.update(len(name).to_bytes(8, "little") + name + content + b"\n")
    return digest.hexdigest()


@dataclass
class FileTally:
    """Counts of a file while it is being read."""

    size: int = 0
    blake3: str = ""
    damage: str = ""
    documents: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    encodings: Counter[str] = field(default_factory=Counter)

    def summary(self, file: str) -> FileSummary:
        return FileSummary(
            file=file,
            bytes=self.size,
            blake3=self.blake3,
            documents=self.documents,
            rejected=dict(sorted(self.rejected.items())),
            encodings=dict(sorted(self.encodings.items())),
            damage=self.damage,
        )
