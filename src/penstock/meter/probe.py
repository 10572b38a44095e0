"""`penstock probe`: starts ranks as a run would, has them measure, and makes a cluster file of it.

The readings are those that `plan/step/probed.py` needs to tell the time of a training step; what
each one is stands in `meter/pieces.py`.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from penstock import __version__
from penstock.catalog import accelerators
from penstock.errors import RunFailed
from penstock.home import home
from penstock.meter import devices, power, storage
from penstock.meter.inventory import take_inventory
from penstock.meter.rendezvous import loopback_store
from penstock.run.clusters.file import ClusterFile

# The list takes about 45 s on two cores; slower machines leave the largest items out.
LIMIT_S = {False: 55.0, True: 8.0}
GRACE_S = 60.0  # start-up and the rest, before the ranks are taken for hung
STORAGE_BYTES = {False: 64 << 20, True: 16 << 20}
# Pieces are timed on memory that stays with the process; what new memory costs has its own reading.
KEEP_BYTES = str(1 << 40)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ProbeReadings:
    """The readings that the ranks sent."""

    tables: dict[str, dict[str, list[list[float]]]]
    loaded_w: float | None

    def points(self, table: str, precision: str = "") -> list[list[float]]:
        return self.tables.get(table, {}).get(precision, [])


def probe(progress: Progress, quick: bool = False) -> ClusterFile:
    """Measure this machine; takes minutes at most."""
    began = time.monotonic()
    machine = devices.find()
    ranks = machine.ranks("all")
    threads = machine.threads(ranks)
    gauge = power.gauge(machine.kind, machine.uuids)
    if gauge:
        time.sleep(0 if quick else 1)  # energy counters need a span
    idle_w = gauge.watts() if gauge else None
    found = _from_ranks(ranks, threads, quick, progress)
    progress("storage", 0, 1)
    at_home = storage.measure(home(), STORAGE_BYTES[quick])
    here = storage.measure(Path.cwd(), STORAGE_BYTES[quick])
    memory = machine.memory_bytes // (ranks if machine.kind == "cpu" else 1)
    probed = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "took_s": round(time.monotonic() - began, 1),
        **_software(machine),
        "kind": machine.kind,
        "seen": take_inventory().fingerprint,
        "ranks": ranks,
        "threads": threads,
        "memory": memory,
        "home_write": _rate(at_home.write_bytes_per_s),
        "home_read": _rate(at_home.read_bytes_per_s),
        "here_write": _rate(here.write_bytes_per_s),
        "here_read": _rate(here.read_bytes_per_s),
        "idle_w": idle_w,
        "loaded_w": found.loaded_w,
        **_readings(found),
    }
    return ClusterFile.model_validate(
        {
            "name": "here",
            "date": probed["date"],
            "accelerator": _accelerator(machine, memory, found, idle_w),
            "node": {"accelerators": ranks},
            "tier": _tiers(found, ranks),
            "storage": {"read": probed["here_read"], "write": probed["here_write"]},
            "probe": {name: value for name, value in probed.items() if value is not None},
        }
    )


def _software(machine: devices.Devices) -> dict[str, str | None]:
    import torch

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": machine.cuda or None,
        "penstock": __version__,
    }


def _accelerator(
    machine: devices.Devices, memory: int, found: ProbeReadings, idle_w: float | None
) -> dict[str, Any]:
    """Return the accelerator as in the catalog, with measured rates in place of published ones."""
    known = accelerators.for_device(machine.name) if machine.kind == "cuda" else None
    name = known.name if known else machine.name or take_inventory().cpu
    best = {
        precision: _short(max(2.0 * m * k * n / seconds for m, k, n, seconds in rows))
        for precision, rows in found.tables.get("matmul_s", {}).items()
    }
    elements, seconds = found.points("add_s", "fp32")[-1]
    about: dict[str, Any] = {
        "name": name,
        "kind": machine.kind,
        "memory": memory,
        "memory_bandwidth": _rate(3 * 4 * elements / seconds),  # two read, one written, 4 bytes
        "matmul": best,
    }
    return about | ({"idle_w": idle_w} if idle_w else {})


def _tiers(found: ProbeReadings, ranks: int) -> list[dict[str, Any]]:
    rows = found.points("all_reduce_s")
    if not rows:
        return []
    size_bytes, seconds = rows[-1]
    moved = 2 * (ranks - 1) / ranks * size_bytes
    hops = 2 * (ranks - 1)
    return [
        {
            "name": "node",
            "size": ranks,
            "bandwidth": _rate(moved / seconds),
            "latency": _short(rows[0][1] / hops),
        }
    ]


def _readings(found: ProbeReadings) -> dict[str, Any]:
    single = {name: found.points(name) for name in ("update_s", "all_reduce_s")}
    several = {
        name: by_precision
        for name, by_precision in found.tables.items()
        if name not in (*single, "op_s", "fresh_s")
    }
    readings: dict[str, Any] = {"op_s": _short(found.points("op_s")[0][0]), **single, **several}
    for size_bytes, seconds in found.points("fresh_s"):
        readings["fresh_bytes_per_s"] = _short(size_bytes / seconds)
    return readings


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"


def _short(value: float) -> float:
    """Round to the significant figures."""
    return float(f"{value:.4g}")


def _from_ranks(ranks: int, threads: int, quick: bool, progress: Progress) -> ProbeReadings:
    with _started(ranks, threads, quick) as (told, why):
        for line in told:
            fact = json.loads(line)
            if "readings" in fact:
                return ProbeReadings(fact["readings"], fact["loaded_w"])
            progress(fact["what"], fact["done"], fact["of"])
        raise RunFailed(f"the probe failed: {why()}")


@contextmanager
def _started(ranks: int, threads: int, quick: bool) -> Iterator[tuple[IO[str], Callable[[], str]]]:
    """Start the ranks; yield rank 0's output and a function that says why they failed.

    No rank outlives the block.
    """
    store = loopback_store()
    limit_s = LIMIT_S[quick]
    command = [sys.executable, "-m", "penstock.meter.probe_rank", _word(quick), str(limit_s)]
    processes: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        clock = threading.Timer(limit_s + GRACE_S, lambda: _end(processes))
        stack.callback(_end, processes)
        stack.callback(clock.cancel)
        for rank, log in enumerate(logs):
            processes.append(
                subprocess.Popen(
                    command,
                    env=_environment(rank, ranks, threads, store.port),
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=log,
                    text=True,
                )
            )
        clock.start()
        told = processes[0].stdout
        assert told is not None
        stack.callback(told.close)
        yield told, lambda: _why(processes, logs)


def _word(quick: bool) -> str:
    return "quick" if quick else "full"


def _environment(rank: int, ranks: int, threads: int, port: int) -> dict[str, str]:
    """Return the variables of a rank, like `launch/supervisor/environment.py` for a run."""
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PENSTOCK_PARENT": str(os.getpid()),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "MALLOC_TRIM_THRESHOLD_": KEEP_BYTES,
        "MALLOC_MMAP_THRESHOLD_": KEEP_BYTES,
    }


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _why(processes: list[subprocess.Popen[str]], logs: Sequence[IO[str]]) -> str:
    """Return the last output of the first rank that failed by itself."""
    for process in processes:
        process.wait(timeout=GRACE_S)
    for rank, (process, log) in enumerate(zip(processes, logs, strict=True)):
        log.seek(0)
        lines = log.read().strip().splitlines()
        if process.returncode:
            last = lines[-1] if lines else f"exit code {process.returncode}"
            return f"rank {rank} ended with: {last}"
    return "the ranks said nothing; try again on a quiet machine"
