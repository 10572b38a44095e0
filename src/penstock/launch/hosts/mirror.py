"""What the ranks of another host write, copied to the host that leads while they write it.

The files of a journal and the logs only grow, so a copy is the bytes past what was sent. The
supervisor then judges ranks of any host by the same files.
"""

import base64
import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.ledger.journal.energy import node_file_stem

_ALLOWED = re.compile(
    r"(journal/a\d+-r[\d-]+\.\w+|journal/node-[\w.-]+\.(energy|meters)"
    r"|logs/attempt-\d+/rank-\d+\.\w+)"
)
_MOST_BYTES = 4 << 20  # of one piece


@dataclass(frozen=True)
class Piece:
    name: str  # relative to the run folder
    at: int
    data: bytes

    def to_json(self) -> dict[str, object]:
        return {"piece": self.name, "at": self.at, "data": base64.b64encode(self.data).decode()}

    @classmethod
    def of(cls, message: dict) -> "Piece":
        return cls(message["piece"], message["at"], base64.b64decode(message["data"]))


@dataclass
class Tail:
    """What was not sent yet of an attempt's files."""

    root: Path
    attempt: int
    node: str = ""  # whose energy goes along; each host has its own alone
    sent: dict[str, int] = field(default_factory=dict)

    def more(self) -> Iterator[Piece]:
        patterns = [f"journal/a{self.attempt:04d}-r*", f"logs/attempt-{self.attempt}/rank-*"]
        if self.node:
            patterns.append(f"journal/{glob.escape(node_file_stem(self.node))}.*")
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                yield from self._of(str(path.relative_to(self.root)), path)

    def _of(self, name: str, path: Path) -> Iterator[Piece]:
        at = self.sent.get(name, 0)
        if path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            while data := file.read(_MOST_BYTES):
                yield Piece(name, at, data)
                at += len(data)
                self.sent[name] = at


def write(root: Path, piece: Piece) -> None:
    """At its place in the copy; a piece that came before is written over itself."""
    if not _ALLOWED.fullmatch(piece.name):
        raise ValueError(f"{piece.name!r}: not a file of a journal or a log")
    path = root / piece.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(piece.at)
        file.write(piece.data)
