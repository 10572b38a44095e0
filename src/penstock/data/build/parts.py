"""Parts: files of documents that go from stage to stage, each of a bounded size.

A part is a file of columns: texts, ids, extras (JSON: user columns and labels) and scores in
thousandths. Other results of tasks are JSON in the same kind of file, so that one runner writes
everything.
"""

import copy
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.build.record import visible_columns
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.manifest import Json
from penstock.data.sources.messages import Conversation

Ints = npt.NDArray[np.int64]
_SHOWN_CHARACTERS = 300  # of a column


@dataclass(frozen=True)
class Extras:
    """Data of a document besides its text."""

    columns: dict[str, object]  # of the user
    language: str = ""
    labels: dict[str, int] | None = None  # thousandths
    conversation: Conversation | None = None  # None: the document is plain text

    def to_json(self) -> bytes:
        chat = self.conversation.to_column() if self.conversation else None
        return lenient_json([self.columns, self.language, self.labels, chat])

    @staticmethod
    def from_json(content: bytes) -> "Extras":
        columns, language, labels, chat = json.loads(content)
        return Extras(columns, language, labels, Conversation.from_column(chat) if chat else None)

    def row(self) -> dict[str, Any]:
        """Return the row for a user's own function: the columns, and the messages of a chat."""
        row = copy.deepcopy(self.columns)
        if self.conversation:
            row["messages"] = [dict(message) for message in self.conversation.messages]
        return row

    def preview(self) -> dict[str, Json]:
        """Return columns and labels for people; long values are cut."""
        columns = visible_columns(self.columns, self.labels or {})
        return {name: _short(value) for name, value in columns.items()}


@dataclass(frozen=True)
class DocumentPart:
    """The documents of one part; lists have the same length."""

    texts: list[str]
    ids: list[str]
    extras: list[bytes]  # `Extras` as JSON
    scores: Ints

    def columns(self) -> Columns:
        return {
            **pack_rows("texts", [text.encode() for text in self.texts]),
            **pack_rows("ids", [one.encode() for one in self.ids]),
            **pack_rows("extras", self.extras),
            "scores": self.scores,
        }


def read_part(path: Path) -> DocumentPart:
    columns = read_columns(path)
    return DocumentPart(
        texts=_texts(columns, "texts"),
        ids=_texts(columns, "ids"),
        extras=[bytes(one) for one in unpack_rows(columns, "extras")],
        scores=np.asarray(columns["scores"]),
    )


def read_texts(path: Path) -> tuple[list[str], Ints]:
    """Return only texts and scores; the rest of the file is not read."""
    columns = read_columns(path, "texts", "texts.ends", "scores")
    return _texts(columns, "texts"), np.asarray(columns["scores"])


def pack_rows(name: str, rows: Sequence[bytes]) -> Columns:
    """Return rows of bytes as two columns: all bytes, and the end of each row."""
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), dtype=np.int64)
    return {name: np.frombuffer(b"".join(rows), np.uint8), f"{name}.ends": ends}


def unpack_rows(columns: Columns, name: str) -> Iterable[memoryview]:
    """Yield the rows that `pack_rows` stored."""
    content = columns[name].data.cast("B") if len(columns[name]) else memoryview(b"")
    start = 0
    for end in columns[f"{name}.ends"].tolist():
        yield content[start:end]
        start = end


def _texts(columns: Columns, name: str) -> list[str]:
    return [str(piece, "utf-8") for piece in unpack_rows(columns, name)]


def lenient_json(value: object) -> bytes:
    """Return JSON of any value from a file: dates as text, NaN and infinity as null."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError):
        return json.dumps(_plain(value)).encode()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    return value if value is None or isinstance(value, str | int) else str(value)


def nested_deeper_than(value: object, most: int) -> bool:
    """Return whether lists and objects are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple | set) else ()


def _short(value: object) -> Json:
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else lenient_json(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def result_columns(value: object) -> Columns:
    """Return the JSON result of a task as the columns of its file."""
    return {"json": np.frombuffer(json.dumps(value).encode(), np.uint8)}


def read_result(path: Path) -> Any:
    return result_of(read_columns(path, "json"))


def result_of(columns: Columns) -> Any:
    """Return the value that `result_columns` stored."""
    return json.loads(columns["json"].tobytes())
