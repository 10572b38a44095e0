"""Files of a source behind a URL: an object, a prefix or a glob, listed by name."""

import errno
import glob
import io
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, cast

from penstock.data.sources.files import RawFile, SourceEntry
from penstock.data.store.objects import ObjectInfo, Store
from penstock.errors import PenstockError, RunFailed

CHUNK_BYTES = 4 << 20  # while one is read, the next is downloaded


def list_url(url: str) -> Iterator[SourceEntry]:
    try:
        folder, objects = _objects(url)
    except OSError as error:
        raise PenstockError(
            f"The source {url} cannot be listed: {error.strerror or error}."
        ) from None
    for one in objects:
        hidden = any(part.startswith(".") for part in one.name.split("/"))
        where = f"{folder}/{one.name}" if one.name else folder
        name = one.name or folder.rpartition("/")[2]
        yield SourceEntry(name.encode(), where, "hidden" if hidden else "", one.size, one.tag)


def open_remote(file: RawFile) -> BinaryIO:
    """Open a remote file that is downloaded in chunks as it is read, in bounded memory."""
    folder, _, name = file.path.rpartition("/")
    store = Store(folder)
    size, tag = file.bytes, file.stamp
    if size < 0:
        with _outage_stops_build():
            head = store.head(name)
        size, tag = head.size, head.tag
    try:
        opened = RemoteFile(store, ObjectInfo(name, size, tag))
        opened.peek()
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return _whole(store, name)  # a server without ranges
    return cast(BinaryIO, opened)


class RemoteFile(io.RawIOBase):
    """A remote file with read-ahead of one chunk while it is read from front to back."""

    def __init__(self, store: Store, about: ObjectInfo) -> None:
        self._store = store
        self._about = about
        self._at = 0
        self._start = 0  # position of `_chunk` in the file
        self._chunk = memoryview(b"")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-source")
        self._next: tuple[int, Future[memoryview]] | None = None
        self._checked = False

    def peek(self) -> None:
        if self._about.size:
            self._load(0, CHUNK_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._about.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        left = max(0, self._about.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        parts = []
        while size:
            if not self._start <= self._at < self._start + len(self._chunk):
                self._load(self._at, size)
            inside = self._at - self._start
            part = self._chunk[inside : inside + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        if self._at >= self._about.size and not self._checked:
            self._check()
        return b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _load(self, start: int, wanted: int) -> None:
        waiting, self._next = self._next, None
        follows = start in (0, self._start + len(self._chunk))
        if waiting and waiting[0] == start:
            self._chunk = waiting[1].result()
        else:
            self._chunk = self._fetch(start, max(wanted, CHUNK_BYTES))
        self._start = start
        after = start + len(self._chunk)
        if follows and after < self._about.size:
            self._next = after, self._pool.submit(self._fetch, after, CHUNK_BYTES)

    def _fetch(self, start: int, length: int) -> memoryview:
        stop = min(start + length, self._about.size)
        with _outage_stops_build():
            return self._store.get_range(self._about.name, start, stop)

    def _check(self) -> None:
        """Check once, at the end, that all chunks came from the same version of the file."""
        with _outage_stops_build():
            now = self._store.head(self._about.name)
        if (now.size, now.tag) != (self._about.size, self._about.tag):
            raise OSError(errno.ESTALE, "it was changed while it was read")
        self._checked = True


@contextmanager
def _outage_stops_build() -> Iterator[None]:
    """Turn network errors into `RunFailed`.

    A damaged file is rejected and the build goes on. A file that cannot be reached now must stop
    the build, since its result must not depend on the network.
    """
    try:
        yield
    except (ConnectionError, PermissionError) as error:
        raise RunFailed(
            f"The source cannot be read: {error.strerror or error}. Fix that, then run the same "
            "command again: it continues with what is missing."
        ) from None


def _objects(url: str) -> tuple[str, list[ObjectInfo]]:
    """Return the folder of a URL and the objects in it that the URL selects."""
    plain = re.split(r"[*?\[]", url)[0]
    if glob.has_magic(url):
        folder = plain.rpartition("/")[0]
        if url.startswith("http"):
            raise OSError(
                errno.ENOTSUP, "a web server has no listing, and queries are not sent; name files"
            )
        matches = re.compile(_pattern(url[len(folder) + 1 :]))
        return folder, [one for one in Store(folder).list() if matches.fullmatch(one.name)]
    folder = url.rstrip("/")
    base, _, name = folder.rpartition("/")
    try:
        if not url.endswith("/") and not base.endswith("/"):  # not a bucket alone
            return base, [Store(base).head(name)]
    except FileNotFoundError:
        if url.startswith("http"):
            raise
    return folder, Store(folder).list()


def _pattern(globbed: str) -> str:
    """Return the regular expression of a glob. As in a shell, * stays in a folder, ** does not."""
    out = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", globbed):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        out += known.get(part) or (
            f"[{part[1:-1].replace('!', '^', 1) if part[1] == '!' else part[1:-1]}]"
            if part.startswith("[") and part.endswith("]")
            else re.escape(part)
        )
    return out


def _whole(store: Store, name: str) -> BinaryIO:
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with _outage_stops_build():
        store.download(name, copy)
    copy.seek(0)
    return cast(BinaryIO, copy)
