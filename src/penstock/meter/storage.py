"""The speed of a folder: writing a file that must be on disk, and reading it back."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError

CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class StorageSpeed:
    """The write and read speed of a folder."""

    write_bytes_per_s: float
    read_bytes_per_s: float


def measure(folder: Path, size_bytes: int) -> StorageSpeed:
    """Write and sync a file of random bytes, drop it from the cache if allowed, and read it."""
    file = folder / f".penstock-probe-{os.getpid()}"
    chunk = os.urandom(CHUNK_BYTES)  # random: some storage compresses
    count = max(1, size_bytes // CHUNK_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        with file.open("wb") as out:
            for _ in range(count):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        written = time.perf_counter()
        with file.open("rb") as back:
            if hasattr(os, "posix_fadvise"):
                with contextlib.suppress(OSError):
                    os.posix_fadvise(back.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            opened = time.perf_counter()
            while back.read(CHUNK_BYTES):
                pass
        done = time.perf_counter()
    except OSError as error:
        raise PenstockError(
            f"{folder}: cannot be measured: {error.strerror}; make it writable and leave "
            f"{size_bytes >> 20} MiB free, or set PENSTOCK_HOME to a folder that is"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
    moved = count * CHUNK_BYTES
    return StorageSpeed(moved / (written - began), moved / (done - opened))
