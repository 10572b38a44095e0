"""Objects that sites publish: a signed table and the bytes that belong to it.

    penstock-site 1 SIGNATURE
    {"kind": …, …}
    bytes

The signature (HMAC-SHA256) covers the name of the object too, so that a copy under another name,
such as that of a later round, is no valid object. Sites share the secret; it is never sent.
"""

import hmac
import json
import os
import re
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.untrusted import parse_table

MAGIC = b"penstock-site 1 "
HEAD_BYTES = 1 << 16  # the most that signature and table take
LEAST_SECRET = 16  # characters
_SIGNATURE = 64  # hexadecimal digits


class BadObject(ValueError):
    """An object that no site of this run has written, or not under this name."""


class NotSigned(BadObject):
    """An object without a good signature: a stranger's, which its site may still replace."""


def seal(name: str, table: dict[str, Any], payload: bytes, secret: bytes) -> bytes:
    """Return the content of an object."""
    body = json.dumps(table, sort_keys=True, separators=(",", ":")).encode() + b"\n" + payload
    return MAGIC + _signed(name, body, secret) + b"\n" + body


def unseal(name: str, content: bytes, secret: bytes) -> tuple[dict[str, Any], bytes]:
    """Return table and bytes of an object. Raises `BadObject` for any other content."""
    start = len(MAGIC) + _SIGNATURE + 1
    if not content.startswith(MAGIC) or content[start - 1 : start] != b"\n":
        raise NotSigned("is not signed")
    body = content[start:]
    if not hmac.compare_digest(content[len(MAGIC) : start - 1], _signed(name, body, secret)):
        raise NotSigned("is signed with another secret, changed, or a copy of another object")
    head, _, payload = body.partition(b"\n")
    try:
        return parse_table(head), payload
    except ValueError as error:
        raise BadObject(f"has a damaged table: {error}") from None


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
