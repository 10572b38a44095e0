"""Real processes of live replicas for tests, with the real quorum over them.

A module of its own, found by its name: what the processes run must be importable there.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.ledger.journal.events import JournalEvent
from real_ranks import CONTEXT

PATIENCE_S = 120.0


def _rank(rank: int, life: int, port: int, out: str, job: Callable[..., Any], args: tuple) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PENSTOCK_ATTEMPT": "attempt-0",
        "PENSTOCK_LIFE": str(life),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    import torch

    torch.set_num_threads(1)
    code = 1
    try:
        torch.save(job(*args), f"{out}.tmp")
        os.replace(f"{out}.tmp", out)
        code = 0
    except BaseException:
        Path(f"{out}.err").write_text(traceback.format_exc())
    sys.stdout.flush()
    os._exit(code)


class Troop:
    """Stands in for the processes of ranks and for their records."""

    attempt = 0

    def __init__(self, folder: Path, port: int, job: Callable[..., Any], args: tuple) -> None:
        self.folder, self.port, self.job, self.args = folder, port, job, args
        self.living: dict[int, Any] = {}

    def start(self, rank: int, life: int) -> None:
        out = str(self.folder / f"rank-{rank}")
        given = (rank, life, self.port, out, self.job, self.args)
        self.living[rank] = CONTEXT.Process(target=_rank, args=given)
        self.living[rank].start()

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: process.exitcode for rank, process in self.living.items()}

    def end_ranks(self, ranks: Iterable[int] | None = None) -> None:
        for rank in list(self.living if ranks is None else ranks):
            if self.living[rank].exitcode is None:
                self.living[rank].kill()
            self.living[rank].join()

    def end_record(self, rank: int) -> None:
        return None

    def step_count(self, rank: int) -> int:
        return 1


class Notes:
    """Stands in for the supervisor's journal."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def write(self, event: JournalEvent, *, t: float | None = None) -> None:
        self.lines.append((event.kind, event.to_payload()))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for found, payload in self.lines if found == kind]


def run(
    folder: Path, replicas: int, each: int, job: Callable[..., Any], *args: Any, allowed: int = 3
) -> tuple[dict[int, Any], Notes]:
    """What `job(*args)` gave on each rank of the replicas that came to the end."""
    import torch
    import torch.distributed as dist

    from penstock.launch.supervisor.quorum import Quorum
    from penstock.train.replicas.membership import ReplicaMembership

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    troop, notes = Troop(folder, store.port, job, args), Notes()
    quorum = Quorum(
        membership=ReplicaMembership(store, "attempt-0"),
        processes=troop,  # type: ignore[arg-type]
        records=troop,  # type: ignore[arg-type]
        replicas=replicas,
        ranks_per_replica=each,
        restarts_allowed=allowed,
        start=troop.start,
        journal=notes,  # type: ignore[arg-type]
        show_fault=lambda rank, reason, action: None,
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        for rank in range(replicas * each):
            troop.start(rank, 0)
        while quorum.update(troop.exit_codes()):
            assert time.monotonic() < deadline, "the replicas hang"
            time.sleep(0.01)
        done = quorum.finished_ranks(troop.exit_codes())
    finally:
        troop.end_ranks()
    said = "\n".join(path.read_text() for path in folder.glob("rank-*.err"))
    assert done, f"{quorum.end_reason}\n{said}"
    return {rank: torch.load(folder / f"rank-{rank}") for rank in done}, notes
