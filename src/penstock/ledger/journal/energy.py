"""Energy of a node in the journal: its meters, and what each of them counted.

The supervisor of a node writes it, never a rank: the energy of a node is the same for one rank and
for eight. There are two files, both appended to by later invocations:

    node-NAME.meters    lines: `meters` {devices, …}, `odd` {device, what}, `closed`
    node-NAME.energy    40 bytes for each device and span of time (`records.ENERGY`)
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.ledger.journal.events import ABSENT, JournalEvent, MeterOdd, MetersOpened
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of, read_events
from penstock.ledger.journal.records import ENERGY, HEADER, header, read_records
from penstock.ledger.journal.writer import Appender, write_line

_FILE = re.compile(r"node-[\w.-]+\.(energy|meters)", re.ASCII)


class EnergySource(IntEnum):
    """The source of a record's joules, from the strongest to the weakest."""

    COUNTER = 0  # the difference of an energy counter
    POWER = 1  # power at both ends × time: the counter was missing, or went back
    FILLED = 2  # the last known power × time: there was no reading
    UNKNOWN = 3  # there never was one: the joules are NaN, for the reader to estimate


@dataclass(frozen=True)
class MeteredDevice:
    """A device with a meter: `kind` is gpu, package (a CPU) or dram."""

    uuid: str
    name: str
    kind: str


@dataclass(frozen=True)
class EnergySpan:
    """One record before it is written."""

    device: int
    t: float
    seconds: float
    joules: float
    source: EnergySource
    watts: float = float("nan")
    limit_w: float = float("nan")
    clock_mhz: float = float("nan")
    temperature_c: float = float("nan")
    throttled: int = 0


@dataclass(frozen=True)
class NodeEnergy:
    """The energy records of one node."""

    name: str
    devices: dict[int, MeteredDevice]
    records: np.ndarray  # of `records.ENERGY`
    lines: tuple[JournalLine, ...] = field(default=())


def is_energy_file(name: str) -> bool:
    """Return whether a file name is one of the two."""
    return _FILE.fullmatch(name) is not None


def node_file_stem(node: str) -> str:
    """Return `node-NAME`, with a name that is fit for a file and still unique."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", node)
    return f"node-{plain}" + (
        "" if plain == node else f"-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    )


class EnergyJournal:
    """The two files of one node, continued from earlier invocations."""

    def __init__(self, folder: Path | str, node: str, devices: Sequence[MeteredDevice]) -> None:
        stem = Path(folder) / node_file_stem(node)
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.node, self.devices = node, list(devices)
        known = _devices(read_events(stem.with_name(stem.name + ".meters")))
        numbers = {device.uuid: number for number, device in known.items()}
        for device in devices:
            numbers.setdefault(device.uuid, len(numbers))
        self.numbers = [numbers[device.uuid] for device in devices]
        self._lines = Appender(stem.with_name(stem.name + ".meters"), 0)
        self._lines.close_line()
        self._records = Appender(stem.with_name(stem.name + ".energy"), 0)
        whole = (self._records.size() - HEADER.size) // ENERGY.itemsize
        if whole < 0:
            self._records.cut(0)
            self._records.append(header("energy", 0, range(1)))
        else:
            self._records.cut(HEADER.size + whole * ENERGY.itemsize)

    def opened(self, t: float, **facts: Any) -> None:
        """Write which devices are metered from now on, and facts about the node."""
        listed = [
            {"number": n, **asdict(d)} for n, d in zip(self.numbers, self.devices, strict=True)
        ]
        self.write_line(MetersOpened(node=self.node, devices=listed, **facts), t)

    def write_line(self, event: JournalEvent, t: float) -> None:
        """Write a line of the node's `.meters` file."""
        write_line(self._lines, t, None, event.kind, event.to_payload(), synced=False)

    def write(self, spans: Sequence[EnergySpan]) -> None:
        """Write spans. `EnergySpan.device` is an index into this journal's devices; the file has
        its own."""
        made = np.zeros(len(spans), ENERGY)
        for record, span in zip(made, spans, strict=True):
            record["device"], record["source"] = self.numbers[span.device], span.source
            for name in ENERGY.names or ():
                if name not in ("device", "source"):
                    record[name] = getattr(span, name)
        self._records.append(made.tobytes())

    def close(self) -> None:
        self._records.close()
        self._lines.close()


def read_nodes(folder: Path | str) -> list[NodeEnergy]:
    """Read every node with energy on record, by name of its file; whole records only."""
    return [_read(path) for path in sorted(Path(folder).glob("node-*.meters"))]


def _read(path: Path) -> NodeEnergy:
    records = path.with_suffix(".energy")
    stats = [os.stat(p) for p in (path, records) if p.exists()]
    return _read_once(path, records, *((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats))


@lru_cache(maxsize=512)
def _read_once(path: Path, records: Path, *states: tuple[int, ...]) -> NodeEnergy:
    """Read a node's files; unchanged files are not read again, since displays refresh every
    second."""
    lines = read_events(path)
    try:
        found = _sane(read_records(records, "energy"))
    except PenstockError as error:  # the rest of the run is still readable
        found = np.empty(0, ENERGY)
        lines.append(LineOf(0.0, MeterOdd(what=str(error))))
    opened = [line.event for line in lines_of(lines, MetersOpened)]
    named = [str(event.node) for event in opened if event.node is not ABSENT]
    name = named[-1] if named else path.stem.removeprefix("node-")
    return NodeEnergy(name, _devices(lines), found, tuple(lines))


def _devices(lines: Sequence[JournalLine]) -> dict[int, MeteredDevice]:
    devices: dict[int, MeteredDevice] = {}
    for line in lines_of(lines, MetersOpened):
        listed = line.event.devices
        for device in listed if isinstance(listed, list) else []:
            match device:
                case {"number": int(n), "uuid": str(uuid), "name": str(name), "kind": str(kind)}:
                    devices[n] = MeteredDevice(uuid, name, kind)
    return devices


def _sane(records: np.ndarray) -> np.ndarray:
    """Return the possible records: a machine's crash may leave garbage."""
    with np.errstate(invalid="ignore"):
        whole = (np.abs(records["t"]) < 1e12) & (records["seconds"] > 0)
        whole &= (records["seconds"] < 1e9) & ~(records["joules"] < 0)
        whole &= ~np.isinf(records["joules"])
    return records[whole & (records["source"] <= max(EnergySource))]
