"""Reading small files that somebody else wrote. Below every room, like `errors`.

A model, dataset or run folder may come from anywhere. A file in it may be a pipe that never ends,
far larger than it should be, or nested so deeply that the parser runs out of stack. All of these
become a ValueError or an OSError with words, which callers turn into their own message.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
SMALL_BYTES = 16 * MIB  # a config
INDEX_BYTES = 128 * MIB  # a list of tensors or shards
TOKENIZER_BYTES = 512 * MIB
# A packed file may unpack to so many bytes, or to so many times its stored size: text has 3 to 30
# times, logs up to 200.
_FREE_BYTES, _MOST_RATIO = 256 * MIB, 500
OVER_RATIO = f"more than {_MOST_RATIO} times its stored size and {_FREE_BYTES >> 20} MiB"
_SHOWN = 80


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


def read_bounded(path: Path, most_bytes: int = SMALL_BYTES, follow: bool = True) -> bytes:
    """Read a plain file of at most so many bytes. Raises ValueError where it is larger."""
    with open_plain(path, follow) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {_size(most_bytes)}")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also where it is nested too deeply for the parser."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, most_bytes: int = SMALL_BYTES) -> Any:
    """Read a JSON file of at most so many bytes. Raises ValueError or OSError."""
    return parse_json(read_bounded(path, most_bytes))


def most_unpacked(stored_bytes: int) -> int:
    """Return how many bytes a packed file may hold; one that unpacks to more is made to harm."""
    return max(_FREE_BYTES, _MOST_RATIO * stored_bytes)


def shown(value: object) -> str:
    """Return a foreign value for a message: short, whatever it is."""
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    elif isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return "a number of more than 80 digits"
    elif isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        if len(value) > 8 or any(isinstance(one, list | dict) for one in value):
            return f"a {kind} of {len(value)}"
        if isinstance(value, dict):
            return f"an object of {len(value)}"
        return f"[{', '.join(map(shown, value))}]"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= MIB else f"{count >> 10} KiB"
