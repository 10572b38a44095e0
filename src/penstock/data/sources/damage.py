"""The end of a streamed file: its identity, and what was wrong with the file as a whole."""

from collections.abc import Iterator
from typing import BinaryIO

from penstock.data.sources.blocks import Blocks
from penstock.data.sources.pieces import Rejected, Tally


def finish(name: str, blocks: Blocks, tally: Tally) -> Iterator[Rejected]:
    tally.size = blocks.size
    tally.blake3 = blocks.digest
    if damage := blocks.damage:
        tally.damage = damage.reason
        detail = f"{damage.detail}; stored bytes from about {damage.offset} on are lost"
        yield Rejected(name, damage.reason, detail)
    elif not blocks.size:
        yield Rejected(name, "empty file")


def finish_unread(name: str, stored: BinaryIO, tally: Tally) -> Iterator[Rejected]:
    """The same for a format that is not read from front to back: its bytes are hashed before."""
    blocks = Blocks(stored, raw=True)
    for _ in blocks:
        pass
    yield from finish(name, blocks, tally)
