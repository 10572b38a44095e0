"""Objects that sites publish: a signed table and the bytes that belong to it.

    penstock-site 1 SIGNATURE
    {"kind": …, …}
    bytes

The signature (HMAC-SHA256) covers the name of the object too, so that a copy under another name,
such as that of a later round, is no valid object. Sites share the secret; it is never sent.

Bytes are deflated where that makes them fewer; the table then has their number as `deflated`. Codes
of few bits are not equally frequent, and neither are the exponents of floats: Huffman codes alone
save 4 to 22 % at 170 MB/s of a core (`DEFLATED` in `plan/job/codecs.py`). A search for repeated
strings would save 2 points more of int2 and of no other codec, at a third of the speed.
"""

import hmac
import json
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.untrusted import parse_table

MAGIC = b"penstock-site 1 "
HEAD_BYTES = 1 << 16  # the most that signature and table take
LEAST_SECRET = 16  # characters
DEFLATED = "deflated"  # key of the table: bytes of the payload before
LEAST_SAVED = 64  # bytes; more than the key takes
PIECE_BYTES = 4 << 20  # that a thread deflates
_SIGNATURE = 64  # hexadecimal digits
_RAW, _MEMORY = -15, 9  # of zlib: no header, the most memory


class BadObject(ValueError):
    """An object that no site of this run has written, or not under this name."""


class NotSigned(BadObject):
    """An object without a good signature: a stranger's, which its site may still replace."""


def seal(name: str, table: dict[str, Any], payload: bytes, secret: bytes) -> bytes:
    """Return the content of an object."""
    deflated = deflate(payload)
    if len(deflated) + LEAST_SAVED <= len(payload):
        table, payload = table | {DEFLATED: len(payload)}, deflated
    body = json.dumps(table, sort_keys=True, separators=(",", ":")).encode() + b"\n" + payload
    return MAGIC + _signed(name, body, secret) + b"\n" + body


def unseal(name: str, content: bytes, secret: bytes, most: int) -> tuple[dict[str, Any], bytes]:
    """Return table and bytes of an object, which are at most so many.

    Raises `BadObject` for any other content.
    """
    start = len(MAGIC) + _SIGNATURE + 1
    if not content.startswith(MAGIC) or content[start - 1 : start] != b"\n":
        raise NotSigned("is not signed")
    body = content[start:]
    if not hmac.compare_digest(content[len(MAGIC) : start - 1], _signed(name, body, secret)):
        raise NotSigned("is signed with another secret, changed, or a copy of another object")
    head, _, payload = body.partition(b"\n")
    try:
        table = parse_table(head)
    except ValueError as error:
        raise BadObject(f"has a damaged table: {error}") from None
    size = table.pop(DEFLATED, None)
    if size is None:
        return table, payload
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= most:
        raise BadObject(f"says that it holds {size!r} bytes, and {most} are the most")
    return table, inflate(payload, size)


def deflate(payload: bytes) -> bytes:
    """Return a payload as one deflated stream, whose pieces were made at the same time."""
    starts = range(0, len(payload), PIECE_BYTES)

    def piece(start: int) -> bytes:
        made = zlib.compressobj(wbits=_RAW, memLevel=_MEMORY, level=6, strategy=zlib.Z_HUFFMAN_ONLY)
        last = start + PIECE_BYTES >= len(payload)
        return made.compress(payload[start : start + PIECE_BYTES]) + made.flush(
            zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH
        )

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return b"".join(threads.map(piece, starts))


def inflate(content: bytes, size: int) -> bytes:
    """Return the `size` bytes of a deflated stream. Raises `BadObject` for any other stream."""
    stream = zlib.decompressobj(_RAW)
    try:
        payload = stream.decompress(content, size + 1)
    except zlib.error as error:
        raise BadObject(f"is not a deflated stream: {error}") from None
    if len(payload) != size or not stream.eof or stream.unused_data:
        raise BadObject(f"does not hold the {size} bytes that it says")
    return payload


def read_secret(written: str) -> bytes:
    """Return the secret that `sites.secret` names: `$VARIABLE`, or a file."""
    if written.startswith("$"):
        name = written[1:].strip("{}")
        found = os.environ.get(name, "")
        if not found:
            raise PenstockError(
                f'sites.secret = "{written}": the variable {name} is not set; set it to the same '
                "secret in every site (`openssl rand -hex 32` makes one), or name a file"
            )
    else:
        try:
            found = Path(written).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PenstockError(
                f'sites.secret = "{written}": cannot be read: {error}; name a file with the secret '
                "that all sites share, or a variable as $NAME"
            ) from None
    if not re.fullmatch(rf"\S{{{LEAST_SECRET},}}", found):
        raise PenstockError(
            f'sites.secret = "{written}": fewer than {LEAST_SECRET} characters, or spaces in it; '
            "`openssl rand -hex 32` makes one"
        )
    return found.encode()


def _signed(name: str, body: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, name.encode() + b"\n" + body, "sha256").hexdigest().encode()
