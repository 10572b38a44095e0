"""Objects behind a URL: range reads, listings and writes through obstore, with bounded retries.

Region, endpoint and credentials come from the variables that each cloud's own tools read:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, …
A failure is an OSError with a readable text: FileNotFoundError, PermissionError, or
ConnectionError if the network or the server did not come back in time.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.secret import redact

PATIENCE_S = 120.0  # how long a request is retried
FIRST_PATIENCE_S = 20.0  # the same, for a store that has never answered
ANSWER_S = 20.0  # how long a request waits without a byte; a client counts an upload as waiting
_LONGEST_PAUSE_S = 5.0
_URL = re.compile(r"(s3|gs|az|https?|file)://")
_CLOUDS = ("AWS_", "GOOGLE_", "AZURE_")
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3")
# S3 answers these with status 400, as if the request were wrong, if credentials have expired.
_STALE = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_Answer = TypeVar("_Answer")


class ObjectTooLarge(PenstockError):
    """An object with more bytes than its reader takes; they were not read."""

    def __init__(self, where: str, size: int) -> None:
        super().__init__(f"{where} has {size} bytes, more than any such file.")
        self.size = size


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Name, size and change tag of one object."""

    name: str  # relative to the store's URL
    size: int
    tag: str  # ETag, or the change time where there is none


def is_url(where: object) -> bool:
    return isinstance(where, str) and _URL.match(where) is not None


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into the bucket or host and the path in it."""
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
    """The objects below a URL. Safe from several threads."""

    def __init__(
        self, url: str, patience_s: float = PATIENCE_S, answer_s: float = ANSWER_S
    ) -> None:
        self.url = url.rstrip("/")
        self._base, self._prefix = split_url(self.url)
        self._patience_s = patience_s
        # Whether it has answered: a later failure is an outage, not a wrong address.
        self._answered = False
        self._inner = _open_client(self._base, _cloud_settings(), answer_s)
        self._obstore = extra("obstore", f"Reading {self._base}")

    def get(self, name: str, max_bytes: int | None = None) -> bytes:
        """Return a whole object. Raises ObjectTooLarge if it is larger than `max_bytes`."""

        def once(path: str) -> bytes:
            result = self._obstore.get(self._inner, path)
            if max_bytes is not None and result.meta["size"] > max_bytes:
                raise ObjectTooLarge(self.where(name), result.meta["size"])
            return bytes(result.bytes())

        return self._retry(name, once)

    def download(self, name: str, file: IO[bytes]) -> None:
        """Write a whole object into an empty file, with bounded memory."""

        def once(path: str) -> None:
            file.seek(0)
            file.truncate()
            for chunk in self._obstore.get(self._inner, path).stream():
                file.write(chunk)

        self._retry(name, once)

    def get_range(self, name: str, start: int, stop: int) -> memoryview:
        """Return bytes [start, stop). Raises FileNotFoundError if the object is shorter."""

        def once(path: str) -> memoryview:
            found = memoryview(self._obstore.get_range(self._inner, path, start=start, end=stop))
            if len(found) != stop - start:
                raise FileNotFoundError(
                    errno.ENODATA,
                    f"it has only {start + len(found)} bytes, at least {stop} were expected",
                )
            return found

        return self._retry(name, once)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> "list[memoryview]":
        """Return several ranges of bytes [start, stop) of an object, fetched together."""
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]

        def once(path: str) -> "list[memoryview]":
            found = self._obstore.get_ranges(self._inner, path, starts=starts, ends=stops)
            parts = [memoryview(part) for part in found]
            if [len(part) for part in parts] != [stop - start for start, stop in ranges]:
                raise FileNotFoundError(errno.ENODATA, "it is shorter than expected")
            return parts

        return self._retry(name, once)

    def get_start(self, name: str, most_bytes: int) -> tuple[bytes, int]:
        """Return the first bytes of an object that is not empty, and the size of all of it."""

        def once(path: str) -> tuple[bytes, int]:
            result = self._obstore.get(self._inner, path, options={"range": (0, most_bytes)})
            return bytes(result.bytes()), int(result.meta["size"])

        return self._retry(name, once)

    def head(self, name: str) -> ObjectInfo:
        return self._retry(name, lambda path: _info(self._obstore.head(self._inner, path), name))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return everything below a folder, sorted by the bytes of the names."""

        def once(path: str) -> "list[ObjectInfo]":
            objects = []
            for batch in self._obstore.list(self._inner, path or None):
                for meta in batch:
                    name = meta["path"][len(path) :].lstrip("/") if path else meta["path"]
                    objects.append(_info(meta, f"{prefix}/{name}" if prefix else name))
            return sorted(objects, key=lambda info: info.name.encode())

        return self._retry(prefix, once)

    def list_folder(self, prefix: str = "") -> tuple[Sequence[str], Sequence[ObjectInfo]]:
        """Return the folders and the objects directly below a folder, by their last names."""

        def once(path: str) -> tuple[Sequence[str], Sequence[ObjectInfo]]:
            found = self._obstore.list_with_delimiter(self._inner, path or None)
            folders = [one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]]
            objects = [_info(one, one["path"].rpartition("/")[2]) for one in found["objects"]]
            return folders, objects

        return self._retry(prefix, once)

    def copy(self, name: str, to: str) -> None:
        """Copy an object inside the store; its bytes do not come here."""
        target = f"{self._prefix}/{to}".strip("/")
        self._retry(name, lambda path: self._obstore.copy(self._inner, path, target))

    def put(self, name: str, content: bytes | Path) -> None:
        self._retry(name, lambda path: self._obstore.put(self._inner, path, content))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether this call wrote it.

        Only one of several writers gets True. After an outage, False can also mean that the
        answer to an earlier attempt was lost.
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

        return self._retry(name, once)

    def delete(self, name: str) -> None:
        self._retry(name, lambda path: self._obstore.delete(self._inner, path))

    def where(self, name: str) -> str:
        """Return the address of an object without passwords, for messages."""
        return redact(f"{self.url}/{name}" if name else self.url)

    def _retry(self, name: str, once: Callable[[str], _Answer]) -> _Answer:
        path = f"{self._prefix}/{name}".strip("/")
        patience_s = self._patience_s if self._answered else min(self._patience_s, FIRST_PATIENCE_S)
        until = time.monotonic() + patience_s
        pause_s = 0.1
        while True:
            try:
                answer = once(path)
                self._answered = True
                return answer
            except (OSError, self._obstore.exceptions.BaseError) as error:
                permanent = _permanent_error(error, self.where(name))
                if permanent:
                    self._answered = True
                    raise permanent from None
                if time.monotonic() + pause_s > until:
                    raise ConnectionError(
                        errno.ETIMEDOUT,
                        f"{self.where(name)} was tried for {patience_s:g} s: {_short(error)} "
                        "Check the address and the network",
                    ) from None
            # Random pauses: a thousand readers must not overload a server that just came back.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@lru_cache(maxsize=64)
def _open_client(
    base: str, settings: tuple[tuple[str, str], ...], answer_s: float = ANSWER_S
) -> Any:
    """Return one client, with its connections, for all users of a bucket with these settings."""
    stores = extra("obstore.store", f"Reading {base}")
    options = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=answer_s),
        "timeout": timedelta(seconds=max(300.0, answer_s)),
        "allow_http": base.startswith("http:")
        or any(name.endswith(_ENDPOINTS) and value.startswith("http:") for name, value in settings),
    }
    # Few and quick: `Store._retry` does the long waiting, and can say what it waits for.
    retry = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
    if base.startswith("file:"):
        return stores.LocalStore("/")
    if base.startswith("http"):
        return stores.HTTPStore.from_url(base, client_options=options, retry_config=retry)
    return stores.from_url(base, client_options=options, retry_config=retry)


def _cloud_settings() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that obstore reads."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(_CLOUDS)))


def _info(meta: Any, name: str) -> ObjectInfo:
    return ObjectInfo(name, meta["size"], (meta["e_tag"] or str(meta["last_modified"])).strip('"'))


def _permanent_error(error: Exception, where: str) -> OSError | None:
    """Return a readable error for a failure that no retry will fix; None for the others."""
    kind = type(error).__name__
    # Errors of listings have the status in their text only.
    status = (re.findall(r"status code: (\d{3})", str(error)) or [""])[0]
    if isinstance(error, FileNotFoundError) or status == "404":
        why = getattr(error, "strerror", "") or "it is not there (no such object or bucket)"
        return FileNotFoundError(errno.ENOENT, f"{where}: {why}")
    if status == "416" or "range was invalid" in str(error):  # by HTTP; by a local folder
        return FileNotFoundError(errno.ENOENT, f"{where}: it is shorter than expected")
    if "169.254.169.254" in str(error):  # the metadata address that gives cloud VMs credentials
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
    """Return the first line of an obstore error, without its internals and its timings."""
    text = redact(" ".join(str(error).split("Debug source")[0].split()))
    return re.sub(r" in [\d.]+(ns|µs|ms|s)\b", "", text)[:300]
