"""A cache of checked content on the local disk, shared by all processes of a node without a daemon.

An entry is a file under its own name, written aside and renamed, so it is whole or not there; its
content is checked each time it is read all the same. Who needs an entry that is not there fetches
it under a lock, so that it is fetched once. The locks are a fixed set of files: an entry's own
could never be removed safely.
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

from penstock.data.store.cache_plan import Plan, hashed, living, names_in
from penstock.data.store.cache_room import Room
from penstock.errors import PenstockError
from penstock.home import home
from penstock.private import refuse_strangers
from penstock.run.schema.quantity import BadQuantity, size_bytes

Buffer: TypeAlias = bytes | memoryview

_LOCKS = 1024
_TURN_S = 15.0  # a fetcher that holds its lock for longer is not waited for
_MOST_SHARE = 0.1  # of the disk's room, where no bound is given
_MOST_BYTES = 64 << 30


class Damaged(Exception):
    """Fetched twice, and wrong twice."""


class Cache:
    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self.folder = folder
        try:
            self.room = Room(folder, most_bytes or 0)
            (folder / "locks").mkdir(exist_ok=True)
            used = self.room.used()  # also shows whether the folder can be written to
            if not most_bytes:
                free = shutil.disk_usage(folder).free + used
                self.room.most_bytes = min(_MOST_BYTES, int(free * _MOST_SHARE))
        except OSError as error:
            raise PenstockError(
                f"The cache for remote data cannot be kept in {folder}: {error.strerror}. Set "
                "data.cache or PENSTOCK_CACHE to a folder that you may write to and that has room."
            ) from error

    @staticmethod
    def default(folder: Path | None = None, most_bytes: int | None = None) -> "Cache":
        """Where and how large the caller says, else the environment, else in Penstock's home."""
        named, bound = (os.environ.get(f"PENSTOCK_CACHE{what}") for what in ("", "_BYTES"))
        where = folder or (Path(named).expanduser() if named else home() / "cache")
        refuse_strangers(where)
        if bound and not most_bytes:
            try:
                most_bytes = size_bytes(int(bound) if bound.isdecimal() else bound)
            except BadQuantity as error:
                raise PenstockError(f"PENSTOCK_CACHE_BYTES = {error}") from None
        return Cache(where, most_bytes)

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def read(self, name: str) -> bytes | None:
        """Marks the entry as used; the caller checks the content. What cannot be read (a bad disk,
        a folder in its place) is as good as missing: it can be fetched."""
        try:
            content = self._path(name).read_bytes()
        except OSError:
            return None
        self.used(name)
        return content

    def used(self, name: str) -> None:
        with suppress(OSError):
            os.utime(self._path(name))

    def entry(
        self,
        name: str,
        good: Callable[[Buffer], bool],
        fetch: Callable[[], Buffer],
        unkept: Callable[[Buffer], None] = lambda content: None,
    ) -> Buffer:
        """The content of an entry, fetched if need be; what is returned is good. Content for which
        there was no room is given to `unkept` before anybody else asks for it."""
        content: Buffer | None = self.read(name)
        if content is not None and good(content):
            return content
        with self._turn(name):
            content = self.read(name)
            if content is not None and good(content):
                return content
            self._drop(name)
            content = fetch()
            if not good(content):
                content = fetch()
            if not good(content):
                raise Damaged
            if not self._keep(name, content):
                unkept(content)
            return content

    def planned_share(self, own: Plan, own_bytes: int) -> int:
        """Bytes that one process may plan ahead: half the cache for all that do.

        Ranks of a run mostly plan the same blocks, and what is planned twice takes its room once:
        what that leaves of the half is dealt out too.
        """
        plans = living(self.folder / "plans")
        half, many = self.room.most_bytes // 2, max(1, len(plans))
        if many == 1 or not len(own):
            return half // many
        planned_bytes = own_bytes * len(names_in(plans)) // len(own)
        return max(half // many, own_bytes + (half - planned_bytes) // many)

    def plan(self) -> Plan:
        return Plan(self.folder / "plans")

    def _keep(self, name: str, content: Buffer) -> bool:
        """Without room, or on a full disk, content is used but not kept."""
        path = self._path(name)
        with suppress(OSError), self.room.take(len(content)) as taken:
            if taken:
                path.parent.mkdir(exist_ok=True)
                with open(taken[0], "wb", buffering=0, closefd=False) as file:
                    whole = file.write(content) == len(content)  # a disk that fills takes a part
                if whole:
                    taken[1].rename(path)
                return whole
        return False

    def _drop(self, name: str) -> None:
        path = self._path(name)
        with suppress(OSError):
            stat = path.lstat()
            if S_ISDIR(stat.st_mode):
                shutil.rmtree(path)  # nothing of ours, and in the way
            else:
                path.unlink()
                self.room.give_back(stat.st_size)

    def _path(self, name: str) -> Path:
        return self.folder / "blocks" / name[:2] / name

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Ours alone, unless its holder takes too long: then two fetch, which does no harm."""
        lock = self.folder / "locks" / str(hashed(name) % _LOCKS)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # a full disk, or a folder that was removed under us: without turns, then
            yield
            return
        until, pause_s = time.monotonic() + _TURN_S, 0.0005
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
