"""JSON records that may be torn, flipped or written by a stranger. Below every room, like `errors`.

Whatever the bytes are, a reader gets a value or a ValueError (an OSError where the disk fails).
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, TypeGuard

from blake3 import blake3

MOST_BYTES = 256 << 20  # of one record; a larger one is not what its name says


def read_record(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a small file. What is no plain file is not opened for long."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for ever
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a plain file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most} bytes, too large for a record")
    return content


def parse_record(content: bytes) -> Any:
    """Return the value of a JSON record; raises ValueError for whatever is none."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes, too large for a record")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply for a record") from None


def parse_table(content: bytes) -> dict[str, Any]:
    """Return the value of a JSON record that has to be a table."""
    found = parse_record(content)
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, not a table")
    return found


def hash_of(value: object) -> str:
    """Return the hash of a JSON value, however it was spaced and ordered."""
    try:
        return blake3(json.dumps(value, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        raise ValueError("nested too deeply for a record") from None


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a whole number of zero or more."""
    return type(value) is int and value >= 0
