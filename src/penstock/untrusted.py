"""Bounded reading of small files that may be damaged or written by a stranger. Below every room.

A model, dataset or run folder may come from anywhere. A file in it may be a pipe that never ends,
far larger than it should be, torn, or nested so deeply that the parser runs out of stack. All of
these become a ValueError or an OSError with a clear text; callers turn it into their own message.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from blake3 import blake3

MIB = 1 << 20
SMALL_BYTES = 16 * MIB  # limit for a config
INDEX_BYTES = 128 * MIB  # limit for a list of tensors or shards
RECORD_BYTES = 256 * MIB  # limit for a JSON record of a run or a checkpoint
TOKENIZER_BYTES = 512 * MIB
# A packed file may unpack to this many bytes, or to this many times its stored size. Text usually
# has a ratio of 3 to 30, logs up to 200.
ALWAYS_ALLOWED_BYTES, MAX_RATIO = 256 * MIB, 500
OVER_RATIO = f"more than {MAX_RATIO} times its stored size and {ALWAYS_ALLOWED_BYTES >> 20} MiB"
_PREVIEW_CHARACTERS = 80


class NotPlain(OSError, ValueError):
    """A pipe, a device or a socket where a file should be."""


def open_plain(path: Path | str, follow: bool = False, buffering: int = -1) -> BinaryIO:
    """Open a plain file to read. Never blocks on a pipe; without `follow`, a link is refused."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotPlain(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(handle, "rb", buffering=buffering)


def read_bounded(path: Path, max_bytes: int = SMALL_BYTES, follow: bool = True) -> bytes:
    """Read a plain file of at most `max_bytes`. Raises ValueError if it is larger."""
    with open_plain(path, follow) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {_size(max_bytes)}")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also if it is nested too deeply for the parser."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, max_bytes: int = SMALL_BYTES) -> Any:
    """Read a JSON file of at most `max_bytes`. Raises ValueError or OSError."""
    return parse_json(read_bounded(path, max_bytes))


def read_record(path: Path, max_bytes: int = RECORD_BYTES) -> bytes:
    """Read the file of a JSON record. Raises ValueError for a damaged one, OSError for a bad disk.

    A pipe in its place is damage: it can be put aside and written again.
    """
    try:
        return read_bounded(path, max_bytes)
    except NotPlain:
        raise ValueError("not a plain file") from None


def parse_record(content: bytes) -> Any:
    """Parse a JSON record. Raises ValueError unless it is strict UTF-8, bounded and well formed."""
    if len(content) > RECORD_BYTES:
        raise ValueError(f"it is larger than {_size(RECORD_BYTES)}")
    return parse_json(content.decode())


def parse_table(content: bytes) -> dict[str, Any]:
    """Parse a JSON record that must be an object. Raises ValueError for anything else."""
    record = parse_record(content)
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, not a table")
    return record


def hash_json(value: object) -> str:
    """Return the BLAKE3 of a JSON value. Spacing and the order of keys do not change it."""
    try:
        return blake3(json.dumps(value, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a whole number of zero or more."""
    return type(value) is int and value >= 0


def max_unpacked_bytes(stored_bytes: int) -> int:
    """Return how many bytes a packed file may hold; one that unpacks to more is an attack."""
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * stored_bytes)


def preview(value: object) -> str:
    """Return a short text of any foreign value, for a message."""
    if isinstance(value, str):
        value = value[: _PREVIEW_CHARACTERS + 1]
    elif isinstance(value, int) and abs(value) >= 10**_PREVIEW_CHARACTERS:
        return "a number of more than 80 digits"
    elif isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        if len(value) > 8 or any(isinstance(item, list | dict) for item in value):
            return f"a {kind} of {len(value)}"
        if isinstance(value, dict):
            return f"an object of {len(value)}"
        return f"[{', '.join(map(preview, value))}]"
    text = repr(value)
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}…"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= MIB else f"{count >> 10} KiB"
