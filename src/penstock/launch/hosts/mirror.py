"""Copies of a follower's journal and logs on the leader, made while the ranks write them.

These files only grow, so a copy needs only the bytes past those that were sent. The supervisor then
reads the same files for ranks of any host.
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
_MOST_BYTES = 4 << 20  # of one chunk


@dataclass(frozen=True)
class FileChunk:
    """Some bytes of a file of the run folder."""

    name: str  # relative to the run folder
    at: int
    data: bytes

    def to_json(self) -> dict[str, object]:
        return {"piece": self.name, "at": self.at, "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_json(cls, message: dict) -> "FileChunk":
        return cls(message["piece"], message["at"], base64.b64decode(message["data"]))


@dataclass
class GrowingFiles:
    """The files of an attempt on this host, and how much of each was sent."""

    root: Path
    attempt: int
    node: str = ""  # this host: its energy files are sent too
    sent: dict[str, int] = field(default_factory=dict)

    def unsent(self) -> Iterator[FileChunk]:
        """Yield what the files have grown by since the last call."""
        patterns = [f"journal/a{self.attempt:04d}-r*", f"logs/attempt-{self.attempt}/rank-*"]
        if self.node:
            patterns.append(f"journal/{glob.escape(node_file_stem(self.node))}.*")
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                yield from self._unsent_of(str(path.relative_to(self.root)), path)

    def _unsent_of(self, name: str, path: Path) -> Iterator[FileChunk]:
        at = self.sent.get(name, 0)
        if path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            while data := file.read(_MOST_BYTES):
                yield FileChunk(name, at, data)
                at += len(data)
                self.sent[name] = at


def write_chunk(root: Path, chunk: FileChunk) -> None:
    """Write a chunk at its place in the copy; a chunk that came before overwrites itself."""
    if not _ALLOWED.fullmatch(chunk.name):
        raise ValueError(f"{chunk.name!r}: not a file of a journal or a log")
    path = root / chunk.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(chunk.at)
        file.write(chunk.data)
