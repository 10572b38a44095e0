"""Byte format of the journal: file names, the header and the fixed-width records.

A run's journal is a folder. Each rank (or range of ranks) of each attempt has its own files, named
after both, so nobody ever appends to a file that another process may have torn:

    a0003-r00000.events          a0003-r00000-00999.steps

`.events` are JSON lines. The others are a 64-byte header and little-endian records of one size, so
that record n of a file is at a known byte and a torn tail is the remainder of a division.
"""

import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.untrusted import open_plain

# start first, so that the f64 is aligned and the record is 32 bytes without padding.
STEP = np.dtype(
    [
        ("start", "<f8"),  # unix seconds
        ("step", "<u4"),
        ("total", "<f4"),  # seconds, as the four below
        ("fetch", "<f4"),  # waiting for data
        ("compute", "<f4"),
        ("exchange", "<f4"),  # in collectives, by the rank's own clock
        ("bubble", "<f4"),  # pipeline idle
    ]
)
PARTS = ("total", "fetch", "compute", "exchange", "bubble")

ROLLUP_STEPS = 256  # records of STEP per record of ROLLUP
ROLLUP = np.dtype(
    [
        ("first_step", "<u4"),
        ("last_step", "<u4"),
        ("start", "<f8"),
        ("end", "<f8"),
        *((part, "<f8") for part in PARTS),  # sums over the block, seconds
    ]
)

CURVE = np.dtype(
    [
        ("t", "<f8"),  # unix seconds
        ("loss", "<f8"),
        ("tokens", "<f8"),  # consumed since the run began
        ("step", "<u8"),
        ("grad_norm", "<f4"),
        ("learning_rate", "<f4"),
    ]
)

# A reading of one device over one span of time; NaN is unknown.
ENERGY = np.dtype(
    [
        ("t", "<f8"),  # where the span ends, unix seconds
        ("seconds", "<f4"),  # its length
        ("joules", "<f4"),
        ("watts", "<f4"),  # at its end, as the five below
        ("limit_w", "<f4"),
        ("clock_mhz", "<f4"),
        ("temperature_c", "<f4"),
        ("throttled", "<u4"),  # reasons, as the driver has them
        ("device", "<u2"),  # number in the list of the node's meters
        ("source", "<u2"),  # where the joules come from: `energy.Counted`
    ]
)

# Unix seconds in a double are good to a quarter of a microsecond, durations in 32 bits to a ten
# millionth of themselves, and a host and a device clock agree to about this much.
CLOCK_ROUNDING_S = 1e-3

MAGIC = {
    "steps": b"PENSTEPS",
    "rollups": b"PENROLLS",
    "curve": b"PENCURVE",
    "energy": b"PENERGYS",
}
DTYPE = {"steps": STEP, "rollups": ROLLUP, "curve": CURVE, "energy": ENERGY}
VERSION = 1
# magic, version, attempt, first rank, last rank, record size, zeros
HEADER = struct.Struct("<8s5I36x")

SUPERVISOR = "supervisor.events"
_NAME = re.compile(r"a(\d{4,9})-r(\d{5,9})(?:-(\d{5,9}))?\.(events|steps|rollups|curve)")


@dataclass(frozen=True)
class JournalFile:
    """A file of the journal and what its name says."""

    path: Path
    attempt: int
    ranks: range
    kind: str


def file_name(attempt: int, ranks: range, kind: str) -> str:
    """Return `a0003-r00000.steps`, or `a0003-r00000-00999.steps` for a range of ranks."""
    last = f"-{ranks[-1]:05d}" if len(ranks) > 1 else ""
    return f"a{attempt:04d}-r{ranks[0]:05d}{last}.{kind}"


def parse_name(path: Path) -> JournalFile | None:
    """Parse a file's name; None if it is not a rank's file."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    first = int(match[2])
    last = int(match[3]) if match[3] else first
    return (
        JournalFile(path, int(match[1]), range(first, last + 1), match[4])
        if last >= first
        else None
    )


def journal_files(folder: Path | str, kind: str | None = None) -> list[JournalFile]:
    """List the ranks' files in a journal by attempt, then rank; of one kind if given.

    Raises OSError if the journal cannot be listed.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        names = []
    found = [file for name in names if (file := parse_name(Path(folder) / name))]
    wanted = [f for f in found if (kind is None or f.kind == kind) and _is_plain(f.path)]
    return sorted(wanted, key=lambda f: (f.attempt, f.ranks.start, f.ranks.stop, f.kind))


def _is_plain(path: Path) -> bool:
    """Return whether it is a file: a link leads elsewhere, and a pipe never ends."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def header(kind: str, attempt: int, ranks: range) -> bytes:
    """Return the 64 bytes that open a file of fixed-width records."""
    return HEADER.pack(MAGIC[kind], VERSION, attempt, ranks[0], ranks[-1], DTYPE[kind].itemsize)


def read_records(path: Path | str, kind: str, first: int = 0) -> np.ndarray:
    """Read the whole records of a file from record `first` on; a torn tail is left out.

    A missing file reads as an empty one: it is created by its first record.
    """
    dtype = DTYPE[kind]
    try:
        with open_plain(path) as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size:
                return np.empty(0, dtype)
            check_header(head, kind, path)
            file.seek(HEADER.size + first * dtype.itemsize)
            body = file.read()
    except FileNotFoundError:
        return np.empty(0, dtype)
    return np.frombuffer(body, dtype, len(body) // dtype.itemsize)


def check_header(head: bytes, kind: str, path: Path | str) -> None:
    """Raise PenstockError if a file is not of this kind."""
    magic, version, _, _, _, size = HEADER.unpack(head)
    if magic != MAGIC[kind]:
        raise PenstockError(
            f"{path} is not a {kind} file of a journal: it begins with {magic!r} instead of "
            f"{MAGIC[kind]!r}. Move it out of the journal folder."
        )
    if version != VERSION or size != DTYPE[kind].itemsize:
        raise PenstockError(
            f"{path} has version {version} with records of {size} bytes; this Penstock reads "
            f"version {VERSION} with {DTYPE[kind].itemsize}. Read it with the one that wrote it."
        )
