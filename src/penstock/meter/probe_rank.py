"""One rank of a probe: `python -m penstock.meter.probe_rank QUICK LIMIT_S`, started by `probe`.

All ranks run the same list at the same time, as they do in training: cores share memory bandwidth
and clock. ProbeRank 0 tells how far it is and, last, what was found: a JSON object on each line.
"""

import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from penstock.meter import devices, pieces, power
from penstock.meter.orphan import die_with
from penstock.meter.precision import measure
from penstock.meter.probe_list import ProbeItem, items

TIMEOUT_S = 60.0
# A sample is at least this long, or the clock itself shows; a reading is as many as fit in a slice.
SAMPLE_S = {"cpu": 2e-4, "cuda": 3e-3}
SLICE_S = {False: 0.09, True: 0.02}
SLOWEST_S = 1.0  # a product that would take longer is left to extrapolation
OTHERS_BYTES = 32 << 20  # more than the share of a last-level cache that a rank has
LOAD_S = 2.0  # how long power is read under load

Readings = dict[str, dict[str, list[list[float]]]]


class ProbeRank:
    def __init__(self, rank: int, ranks: int, device: torch.device, quick: bool) -> None:
        self.rank, self.ranks, self.device, self.quick = rank, ranks, device, quick
        # Each rank is a shard group of its own, as in a run of replicas.
        self.mesh: DeviceMesh = init_device_mesh(
            device.type, (ranks, 1), mesh_dim_names=("replicate", "shard")
        )["shard"]
        self.rates: dict[str, float] = {}  # of the last product, by precision
        # In a step every piece comes to caches that hold the ones before it.
        self.others = torch.zeros(OTHERS_BYTES // 4) if device.type == "cpu" else None

    def readings(self, todo: list[ProbeItem], limit_s: float) -> dict[ProbeItem, float]:
        """Return seconds by item; items that do not fit in `limit_s` are left out.

        The first item of each table is read however late it is.
        """
        began, found = time.perf_counter(), {}
        curves = set()
        for done, item in enumerate(todo):
            over = time.perf_counter() - began > limit_s or self._too_slow(item)
            needed = item.curve not in curves
            curves.add(item.curve)
            if not needed and self._anyone(over):
                continue
            found[item] = self._take(item)
            if self.rank == 0 and done % 5 == 0:
                tell(done=done, of=len(todo), what=item.table.removesuffix("_s").replace("_", "-"))
        return found

    def _take(self, item: ProbeItem) -> float:
        if item.table == "all_reduce_s":
            return self._collective(item.at[0])
        if item.table == "shard_s":
            return self._shard(item.at[0], item.precision)
        spent = self._time(self._work(item))
        if item.table == "matmul_s":
            self.rates[item.precision] = math.prod(item.at) / spent
        chained = item.table in ("norm_s", "rotary_s", "gate_s")
        return spent / pieces.CHAIN if chained else spent

    def _shard(self, parameters: int, precision: str) -> float:
        with_it = self._time(pieces.sharded(parameters, precision, self.device, self.mesh))
        without = self._time(pieces.unsharded(parameters, precision, self.device))
        return max(1e-9, with_it - without)

    def _work(self, item: ProbeItem) -> pieces.Work:
        if item.table == "op_s":
            return pieces.small_op(self.device)
        if item.table == "fresh_s":
            return pieces.fresh(item.at[0])
        if item.table == "update_s":
            return pieces.update(item.at[0], self.device)
        makers: dict[str, Callable[..., pieces.Work]] = {
            "matmul_s": pieces.product,
            "attention_s": pieces.attention,
            "norm_s": pieces.norm,
            "rotary_s": pieces.rotary,
            "gate_s": pieces.gate,
            "add_s": pieces.add,
            "loss_s": pieces.loss,
        }
        return makers[item.table](*item.at, item.precision, self.device)

    def _time(self, work: pieces.Work) -> float:
        """Return a typical sample out of those that fit in a slice of time, after a warm-up."""
        self._sample(work, 1)
        once = self._sample(work, 1)
        inner = max(1, math.ceil(SAMPLE_S[self.device.type] / once))
        left = SLICE_S[self.quick]
        samples: list[float] = []
        while left > 0 or len(samples) < 2:
            if self.others is not None and inner == 1:
                self.others.add_(1.0)
            samples.append(self._sample(work, inner))
            left -= samples[-1] * inner
        return typical(samples)

    def _collective(self, size_bytes: int) -> float:
        """Time a collective; its size alone sets the repetitions, on which ranks must agree."""
        work = pieces.all_reduce(size_bytes, self.device)
        self._sample(work, 5)  # the first ones open connections
        count = max(3, min(30, (128 << 20) // size_bytes))
        return typical([self._sample(work, 1) for _ in range(count)])

    def _sample(self, work: pieces.Work, times: int) -> float:
        self._sync()
        began = time.perf_counter()
        for _ in range(times):
            work()
        self._sync()
        return (time.perf_counter() - began) / times

    def _sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _too_slow(self, item: ProbeItem) -> bool:
        rate = self.rates.get(item.precision)
        return (
            item.table == "matmul_s" and rate is not None and math.prod(item.at) / rate > SLOWEST_S
        )

    def _anyone(self, flag: bool) -> bool:
        """Return whether any rank sets the flag; also makes ranks measure at the same time."""
        votes = torch.tensor([float(flag)])
        if self.ranks > 1:
            dist.all_reduce(votes)
        return votes.item() > 0

    def slow(self) -> tuple[str, ...]:
        """Return the precisions in which no run of "auto" trains here; all ranks agree."""
        return ("bf16",) if self._anyone(not measure(devices.find()).fast) else ()

    def loaded_w(self, precision: str) -> float | None:
        """Return the power of one accelerator (or of the CPUs) while all ranks multiply."""
        gauge = power.gauge(self.device.type, self._uuids())
        if self._anyone(gauge is None):
            return None
        side = 8192 if self.device.type == "cuda" else 1024
        work = pieces.product(side, side, side, precision, self.device)
        once = self._time(work)
        assert gauge is not None
        gauge.start()
        for _ in range(math.ceil(LOAD_S / once)):  # on CUDA this only queues the work
            work()
        self._sync()
        return gauge.watts()

    def _uuids(self) -> tuple[str, ...]:
        """Return the UUID of this rank's accelerator."""
        if self.device.type != "cuda":
            return ()
        return (str(torch.cuda.get_device_properties(self.device).uuid),)

    def gathered(self, found: dict[ProbeItem, float]) -> Readings:
        """Return the mean over ranks, by table and precision, with the size before the seconds."""
        own = torch.tensor(list(found.values()), dtype=torch.float64)
        every = [own]
        if self.ranks > 1:
            every = [torch.empty_like(own) for _ in range(self.ranks)]
            dist.all_gather(every, own)
        everyone = [one.tolist() for one in every]
        tables: Readings = {}
        for item, seconds in zip(found, zip(*everyone, strict=True), strict=True):
            points = tables.setdefault(item.table, {}).setdefault(item.precision, [])
            points.append([*item.at, statistics.fmean(seconds)])
        for table in tables.values():
            for points in table.values():
                points.sort()
        return tables


def typical(samples: list[float]) -> float:
    """Return the lower quartile: another process's load must not count as the machine's speed.

    A run is not hurt by one either: it is its median step that counts.
    """
    return sorted(samples)[len(samples) // 4]


def tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(quick: bool, limit_s: float) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    dist.init_process_group(
        "cuda:nccl,cpu:gloo" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    worker = ProbeRank(rank, ranks, device, quick)
    fp8 = cuda and torch.cuda.get_device_capability(device) >= (8, 9)
    slow = worker.slow()
    todo = items(device.type, ranks, fp8, quick, slow)
    found = worker.gathered(worker.readings(todo, limit_s))
    loaded_w = None if quick else worker.loaded_w("fp32" if slow else "bf16")
    if rank == 0:
        tell(readings=found, loaded_w=loaded_w)
    worker._anyone(False)  # nobody leaves while another still talks to it


if __name__ == "__main__":
    die_with(int(os.environ["PENSTOCK_PARENT"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main(quick=sys.argv[1] == "quick", limit_s=float(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # past torch's own exit, which has been seen to abort
