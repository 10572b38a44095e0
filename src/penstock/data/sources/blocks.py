"""Blocks of a stored file: read, hashed, unpacked and decoded to UTF-8 in bounded memory.

Damage does not raise: the blocks end early, and `damage` says what is wrong and where. A block
never grows with the file: a hostile gzip yields 1 MiB at a time, a hostile zstd at most 8 MiB. A
file that unpacks to far more than any text does counts as damaged.
"""

import codecs
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from blake3 import blake3

from penstock.extras import extra
from penstock.untrusted import OVER_RATIO, max_unpacked_bytes

BLOCK_BYTES = 1 << 20
_ZSTD_STEP = 1 << 8  # packed bytes per call; this bounds the bytes that one call returns
_ZSTD_WINDOW = 1 << 27  # zstd's own limit without --long
_FOREIGN = {"zip": b"PK\x03\x04", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0", "7z": b"7z\xbc\xaf\x27\x1c"}
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_SKIPPABLE = b"\x2a\x4d\x18"  # second to fourth byte of a zstd frame that holds no data
# Longer byte-order marks first: UTF-32's little-endian mark begins with UTF-16's.
_MARKS = [
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
]


@dataclass(frozen=True, slots=True)
class FileDamage:
    """The reason why a file could not be read to its end."""

    reason: str
    detail: str
    offset: int  # in the stored file, to within a block: everything before it was sound


class FileBlocks:
    """Blocks of one file. Iterate once; afterwards the attributes below are final."""

    def __init__(self, stored: BinaryIO, packing: str = "", raw: bool = False) -> None:
        self.size = 0
        self.damage: FileDamage | None = None
        self.encoding = "utf-8"  # of the file; blocks are always UTF-8
        self._stored = stored
        self._hash = blake3()
        self._packing = packing
        self._raw = raw  # only hash the stored bytes; yield nothing
        self._readable = True

    @property
    def digest(self) -> str:
        """Return the BLAKE3 of the stored bytes; empty if they could not all be read."""
        return self._hash.hexdigest() if self._readable else ""

    def __iter__(self) -> Iterator[bytes]:
        if not self._raw:
            yield from self._as_utf8(self._unpacked())
        # After damage the rest is hashed too: the identity is that of the whole file.
        for _ in self._read():
            pass

    def _read(self) -> Iterator[bytes]:
        while True:
            try:
                block = self._stored.read(BLOCK_BYTES)
            except OSError as error:
                self._record_damage("cannot be read", error.strerror or str(error))
                self._readable = False
                return
            if not block:
                return
            self.size += len(block)
            self._hash.update(block)
            yield block

    def _record_damage(self, reason: str, detail: str) -> None:
        if not self.damage:
            self.damage = FileDamage(reason, detail, self.size)

    def _unpacked(self) -> Iterator[bytes]:
        blocks = self._read()
        first = next(blocks, b"")
        if not first:
            return
        # A packed file may have lost its suffix; a wrong suffix counts as damage.
        packing = self._packing or next(
            (name for name, magic in _MAGIC.items() if first.startswith(magic)), ""
        )
        foreign = next((name for name, magic in _FOREIGN.items() if first.startswith(magic)), "")
        if foreign and not packing:
            self._record_damage(f"packed as {foreign}", "unpack it, or pack it as .gz or .zst")
        elif not packing:
            yield first
            yield from blocks
        elif not _starts_frame(packing, first):
            self._record_damage(f"not {packing}", "the first bytes are not those of such a file")
        else:
            yield from self._unpack(packing, first, blocks)

    def _unpack(self, packing: str, packed: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the unpacked content of all frames; both formats allow several in one file."""
        unpacked = 0
        while True:
            frame = _frame(packing)
            full = False  # after a full block the decompressor may hold more without new input
            try:
                while not frame.eof:
                    if not packed and not full and not (packed := next(blocks, b"")):
                        self._record_damage(f"truncated {packing}", "the file ends within a frame")
                        return
                    out, packed = frame.feed(packed)
                    full = len(out) >= BLOCK_BYTES
                    if out:
                        yield out
                    unpacked += len(out)
                    if unpacked > max_unpacked_bytes(self.size):
                        self._record_damage("unpacks to too much", OVER_RATIO)
                        return
            except (zlib.error, frame.error) as error:
                self._record_damage(f"damaged {packing}", str(error))
                return
            while not (packed := packed.lstrip(b"\0")):  # tapes and some tools pad with zero bytes
                if not (packed := next(blocks, b"")):
                    return
            if len(packed) < 4:
                packed += next(blocks, b"")
            if not _starts_frame(packing, packed):
                self._record_damage(f"damaged {packing}", "bytes after the end that are no frame")
                return

    def _as_utf8(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        first = b""
        for block in blocks:  # the first one can be shorter than a byte-order mark
            first = first + block if first else block
            if len(first) >= 4:
                break
        mark, self.encoding = next(
            ((mark, name) for mark, name in _MARKS if first.startswith(mark)), (b"", "utf-8")
        )
        first = first[len(mark) :]
        if self.encoding == "utf-8":
            if first:
                yield first
            yield from blocks
            return
        decoder = codecs.getincrementaldecoder(self.encoding)()
        try:
            while first:
                yield decoder.decode(first).encode()
                first = next(blocks, b"")
            decoder.decode(b"", final=True)
        except UnicodeError as error:
            self._record_damage(f"not {self.encoding}", str(error))


class _Frame(Protocol):
    error: type[Exception]

    @property
    def eof(self) -> bool: ...

    def feed(self, packed: bytes) -> tuple[bytes, bytes]:
        """Return some unpacked bytes, and the packed bytes that are left."""


class _Gzip:
    error: type[Exception] = zlib.error

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def feed(self, packed: bytes) -> tuple[bytes, bytes]:
        out = self._inner.decompress(packed, BLOCK_BYTES)
        return out, self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail


class _Zstd:
    def __init__(self) -> None:
        zstandard = extra("zstandard", "Reading .zst files")
        self.error: type[Exception] = zstandard.ZstdError
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._inner = unpacker.decompressobj(write_size=1 << 14)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def feed(self, packed: bytes) -> tuple[bytes, bytes]:
        # Several steps per call, so that the caller gets large blocks.
        parts, size, at = [], 0, 0
        view = memoryview(packed)
        while at < len(packed) and size < BLOCK_BYTES and not self._inner.eof:
            part = self._inner.decompress(view[at : at + _ZSTD_STEP])
            at += _ZSTD_STEP
            parts.append(part)
            size += len(part)
        return b"".join(parts), self._inner.unused_data + packed[at:]


def _frame(packing: str) -> _Frame:
    return _Gzip() if packing == "gzip" else _Zstd()


def _starts_frame(packing: str, packed: bytes) -> bool:
    if packing == "zstd" and packed[1:4] == _SKIPPABLE and packed[0] & 0xF0 == 0x50:
        return True
    return packed.startswith(_MAGIC[packing])
