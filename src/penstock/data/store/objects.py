"""Objects behind a URL: range reads, listings and writes through obstore, with bounded retries.

Region, endpoint and credentials come from the variables that each cloud's own tools read:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, …
What fails is an OSError with a sentence in it: FileNotFoundError, PermissionError, or
ConnectionError when the link or the server did not come back in time.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.secret import redact

PATIENCE_S = 120.0  # how long a request is tried again
FIRST_PATIENCE_S = 20.0  # with one that has never answered
_LONGEST_PAUSE_S = 5.0
_URL = re.compile(r"(s3|gs|az|https?|file)://")
_CLOUDS = ("AWS_", "GOOGLE_", "AZURE_")
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3")
# What S3 answers with status 400, as if the request were wrong, when credentials have run out.
_STALE = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Listed:
    name: str  # relative to the store's URL
    size: int
    tag: str  # ETag, or the change time where there is none


def is_url(where: object) -> bool:
    return isinstance(where, str) and _URL.match(where) is not None


def split_url(url: str) -> tuple[str, str]:
    """What a store is opened for (bucket or host), and the path in it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return "file:///", unquote(parts.path).strip("/")
    if parts.scheme in ("http", "https"):
        if parts.query or parts.fragment:
            raise OSError(errno.EINVAL, f"{redact(url)} has a query; only plain paths can be read")
        return f"{parts.scheme}://{parts.netloc}", unquote(parts.path).strip("/")
    base = f"{parts.scheme}://{parts.netloc}"
    return base, url[len(base) :].strip("/")


class Store:
    """A URL prefix. Safe from several threads."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url = url.rstrip("/")
        self._base, self._prefix = split_url(self.url)
        self._patience_s = patience_s
        self._met = False  # it has answered: what follows is an outage, not a wrong address
        self._inner = _opened(self._base, _cloud_settings())
        self._obstore = extra("obstore", f"Reading {self._base}")

    def get(self, name: str, most_bytes: int | None = None) -> bytes:
        """Return a whole object; PenstockError where it is larger than `most_bytes`."""

        def once(path: str) -> bytes:
            found = self._obstore.get(self._inner, path)
            if most_bytes is not None and found.meta["size"] > most_bytes:
                raise PenstockError(
                    f"{self.where(name)} has {found.meta['size']} bytes, more than any such file."
                )
            return bytes(found.bytes())

        return self._try(name, once)

    def download(self, name: str, file: IO[bytes]) -> None:
        """The whole object into an empty file, bounded in memory."""

        def once(path: str) -> None:
            file.seek(0)
            file.truncate()
            for chunk in self._obstore.get(self._inner, path).stream():
                file.write(chunk)

        self._try(name, once)

    def get_range(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop), all of them or an error."""

        def once(path: str) -> memoryview:
            found = memoryview(self._obstore.get_range(self._inner, path, start=start, end=stop))
            if len(found) != stop - start:
                raise FileNotFoundError(
                    errno.ENODATA,
                    f"it has only {start + len(found)} bytes, at least {stop} were expected",
                )
            return found

        return self._try(name, once)

    def head(self, name: str) -> Listed:
        return self._try(name, lambda path: _listed(self._obstore.head(self._inner, path), name))

    def list(self, prefix: str = "") -> list[Listed]:
        """Everything below a folder, in the order of the names' bytes."""

        def once(path: str) -> "list[Listed]":
            found = []
            for batch in self._obstore.list(self._inner, path or None):
                for meta in batch:
                    name = meta["path"][len(path) :].lstrip("/") if path else meta["path"]
                    found.append(_listed(meta, f"{prefix}/{name}" if prefix else name))
            return sorted(found, key=lambda one: one.name.encode())

        return self._try(prefix, once)

    def put(self, name: str, content: bytes | Path) -> None:
        self._try(name, lambda path: self._obstore.put(self._inner, path, content))

    def create(self, name: str, content: bytes) -> bool:
        """Writes it unless it is there, which of several writers only one can; whether it did.

        After an outage False can also mean that the answer to an earlier try was lost.
        """
        exists = (
            self._obstore.exceptions.AlreadyExistsError,
            self._obstore.exceptions.PreconditionError,
        )

        def once(path: str) -> bool:
            try:
                self._obstore.put(self._inner, path, content, mode="create")
                return True
            except exists:
                return False

        return self._try(name, once)

    def delete(self, name: str) -> None:
        self._try(name, lambda path: self._obstore.delete(self._inner, path))

    def where(self, name: str) -> str:
        """Return the address of an object as it may be shown."""
        return redact(f"{self.url}/{name}" if name else self.url)

    def _try(self, name: str, once: Callable[[str], _Answer]) -> _Answer:
        path = f"{self._prefix}/{name}".strip("/")
        patience_s = self._patience_s if self._met else min(self._patience_s, FIRST_PATIENCE_S)
        until = time.monotonic() + patience_s
        pause_s = 0.1
        while True:
            try:
                answer = once(path)
                self._met = True
                return answer
            except (OSError, self._obstore.exceptions.BaseError) as error:
                final = _final(error, self.where(name))
                if final:
                    self._met = True
                    raise final from None
                if time.monotonic() + pause_s > until:
                    raise ConnectionError(
                        errno.ETIMEDOUT,
                        f"{self.where(name)} was tried for {patience_s:g} s: {_short(error)} "
                        "Check the address and the network",
                    ) from None
            # Spread out: a thousand readers of a server that comes back must not fell it again.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@lru_cache(maxsize=64)
def _opened(base: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """One client, with its open connections, for all who use a bucket with the same settings."""
    stores = extra("obstore.store", f"Reading {base}")
    options = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=20),  # without a byte
        "timeout": timedelta(seconds=300),
        "allow_http": base.startswith("http:")
        or any(name.endswith(_ENDPOINTS) and value.startswith("http:") for name, value in settings),
    }
    # Few and quick here: the patience for an outage is ours, and it can say what it waits for.
    retry = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
    if base.startswith("file:"):
        return stores.LocalStore("/")
    if base.startswith("http"):
        return stores.HTTPStore.from_url(base, client_options=options, retry_config=retry)
    return stores.from_url(base, client_options=options, retry_config=retry)


def _cloud_settings() -> tuple[tuple[str, str], ...]:
    """What obstore reads from the environment."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(_CLOUDS)))


def _listed(meta: Any, name: str) -> Listed:
    return Listed(name, meta["size"], (meta["e_tag"] or str(meta["last_modified"])).strip('"'))


def _final(error: Exception, where: str) -> OSError | None:
    """What no second try will mend, in words of ours."""
    kind = type(error).__name__
    # Listings tell it in their text alone.
    status = (re.findall(r"status code: (\d{3})", str(error)) or [""])[0]
    if isinstance(error, FileNotFoundError) or status == "404":
        why = getattr(error, "strerror", "") or "it is not there (no such object or bucket)"
        return FileNotFoundError(errno.ENOENT, f"{where}: {why}")
    if status == "416" or "range was invalid" in str(error):  # of HTTP; of a folder
        return FileNotFoundError(errno.ENOENT, f"{where}: it is shorter than expected")
    if "169.254.169.254" in str(error):  # the cloud's own machines learn their rights there
        return PermissionError(
            errno.EACCES,
            f"{where}: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(for a public bucket: AWS_SKIP_SIGNATURE=true)",
        )
    code = (re.findall(r"<Code>(\w+)</Code>", str(error)) or [""])[0]
    refused = kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403")
    if refused or isinstance(error, PermissionError) or code in _STALE:
        return PermissionError(
            errno.EACCES,
            f"{where}: access was refused{f' ({code})' if code else ''}; check the credentials and "
            "rights, and whether they have expired (for S3: AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)",
        )
    if status == "501" or kind in (
        "InvalidPathError",
        "NotSupportedError",
        "UnknownConfigurationKeyError",
    ):
        return OSError(errno.ENOTSUP, f"{where}: {_short(error)}")
    return None


def _short(error: Exception) -> str:
    """Return the first line of what obstore says, without its internals and its stopwatch."""
    text = redact(" ".join(str(error).split("Debug source")[0].split()))
    return re.sub(r" in [\d.]+(ns|µs|ms|s)\b", "", text)[:300]
