"""A cache of checked content on the local disk, shared by all processes of a node without a daemon.

An entry is a file under its own name. It is written under a temporary name and renamed, so it is
complete or absent; its content is still checked on each read. A process that misses an entry
fetches it under a lock, so that it is fetched once. The locks are a fixed set of files, because a
lock file per entry could never be removed safely.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TypeAlias

from penstock.data.store.cache_space import CacheSpace
from penstock.data.store.planned_reads import PlannedReads, live_plans, name_hash, names_in
from penstock.errors import PenstockError
from penstock.home import home
from penstock.private import refuse_strangers
from penstock.run.schema.quantity import BadQuantity, size_bytes

Buffer: TypeAlias = bytes | memoryview

_LOCKS = 1024
_LOCK_WAIT_S = 15.0  # a process that holds its lock for longer is not waited for
_DISK_SHARE = 0.1  # of the free disk space, if no limit is given
_DEFAULT_MAX_BYTES = 64 << 30


class DamagedEntry(Exception):
    """Content that was fetched twice and failed its check twice."""


class Cache:
    """Checked entries in one folder, bounded in size.

    Without `max_bytes` the limit is a tenth of the free disk space, at most 64 GiB.
    """

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.folder = folder
        try:
            self.space = CacheSpace(folder, max_bytes or 0)
            (folder / "locks").mkdir(exist_ok=True)
            used = self.space.used_bytes()  # also shows whether the folder can be written to
            if not max_bytes:
                free = shutil.disk_usage(folder).free + used
                self.space.max_bytes = min(_DEFAULT_MAX_BYTES, int(free * _DISK_SHARE))
        except OSError as error:
            raise PenstockError(
                f"The cache for remote data cannot be kept in {folder}: {error.strerror}. Set "
                "data.cache or PENSTOCK_CACHE to a folder that you may write to and that has room."
            ) from error

    @staticmethod
    def from_environment(folder: Path | None = None, max_bytes: int | None = None) -> "Cache":
        """Open the cache that the arguments, else PENSTOCK_CACHE, else Penstock's home name."""
        named, limit = (os.environ.get(f"PENSTOCK_CACHE{what}") for what in ("", "_BYTES"))
        where = folder or (Path(named).expanduser() if named else home() / "cache")
        refuse_strangers(where)
        if limit and not max_bytes:
            try:
                max_bytes = size_bytes(int(limit) if limit.isdecimal() else limit)
            except BadQuantity as error:
                raise PenstockError(f"PENSTOCK_CACHE_BYTES = {error}") from None
        return Cache(where, max_bytes)

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def read(self, name: str) -> bytes | None:
        """Return an entry, unchecked, and mark it as used; None if it cannot be read.

        An entry on a bad disk, or a folder in its place, counts as missing: it can be fetched.
        """
        try:
            content = self._path(name).read_bytes()
        except OSError:
            return None
        self.mark_used(name)
        return content

    def mark_used(self, name: str) -> None:
        """Note that an entry was used now: the least recently used ones are removed first."""
        with suppress(OSError):
            os.utime(self._path(name))

    def get_or_fetch(
        self,
        name: str,
        is_good: Callable[[Buffer], bool],
        fetch: Callable[[], Buffer],
        on_no_space: Callable[[Buffer], None] = lambda content: None,
    ) -> Buffer:
        """Return the content of an entry, which passed `is_good`; fetch it if it is missing.

        If the cache has no space for the content, `on_no_space` gets it before another thread can
        ask for the entry. Raises DamagedEntry after two bad fetches.
        """
        content: Buffer | None = self.read(name)
        if content is not None and is_good(content):
            return content
        with self._entry_lock(name):
            content = self.read(name)
            if content is not None and is_good(content):
                return content
            self._remove(name)
            content = fetch()
            if not is_good(content):
                content = fetch()
            if not is_good(content):
                raise DamagedEntry
            if not self._store(name, content):
                on_no_space(content)
            return content

    def planned_share_bytes(self, own: PlannedReads, own_bytes: int) -> int:
        """Return how many bytes one process may plan ahead: all of them share half the cache.

        The ranks of a run mostly plan the same blocks, which need their space only once. The
        space that this saves is shared too.
        """
        plans = live_plans(self.folder / "plans")
        half, processes = self.space.max_bytes // 2, max(1, len(plans))
        if processes == 1 or not len(own):
            return half // processes
        planned_bytes = own_bytes * len(names_in(plans)) // len(own)
        return max(half // processes, own_bytes + (half - planned_bytes) // processes)

    def open_plan(self) -> PlannedReads:
        """Create the list of this process's coming reads, which protects them from removal."""
        return PlannedReads(self.folder / "plans")

    def _store(self, name: str, content: Buffer) -> bool:
        """Store an entry; return False if there is no space or the disk is full."""
        path = self._path(name)
        with suppress(OSError), self.space.reserve(len(content)) as reserved:
            if reserved:
                path.parent.mkdir(exist_ok=True)
                with open(reserved[0], "wb", buffering=0, closefd=False) as file:
                    whole = file.write(content) == len(content)  # a disk may fill during the write
                if whole:
                    reserved[1].rename(path)
                return whole
        return False

    def _remove(self, name: str) -> None:
        path = self._path(name)
        with suppress(OSError):
            stat = path.lstat()
            if S_ISDIR(stat.st_mode):
                shutil.rmtree(path)  # not written by a cache, and in the way
            else:
                path.unlink()
                self.space.release(stat.st_size)

    def _path(self, name: str) -> Path:
        return self.folder / "blocks" / name[:2] / name

    @contextmanager
    def _entry_lock(self, name: str) -> Iterator[None]:
        """Hold the lock of an entry. After 15 s go on without it: two fetches do no harm."""
        lock = self.folder / "locks" / str(name_hash(name) % _LOCKS)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # a full disk, or the folder was removed meanwhile: work without a lock
            yield
            return
        until, pause_s = time.monotonic() + _LOCK_WAIT_S, 0.0005
        try:
            while time.monotonic() < until:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.01)
            yield
        finally:
            os.close(handle)
