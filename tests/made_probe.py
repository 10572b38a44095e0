"""A probe that nobody took: two CPU ranks with round readings."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.meter.inventory import take_inventory
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.file import ClusterFile
from penstock.run.clusters.load import save_cluster

SIZED = [[1000, 1e-5], [1000000, 1e-2]]
BOTH = {"fp32": SIZED, "bf16": SIZED}


def probed(seen: str) -> ClusterFile:
    """A probe of two CPU ranks, by hand."""
    by_precision = ("norm_s", "rotary_s", "gate_s", "add_s", "loss_s", "shard_s")
    heads = [[256, 64, 8, 8e-3]]
    return ClusterFile.model_validate(
        {
            "name": "here",
            "accelerator": {
                "name": "Some CPU",
                "kind": "cpu",
                "memory": "4 GiB",
                "memory_bandwidth": "10 GB/s",
                "matmul": {"fp32": 1e11},
            },
            "node": {"accelerators": 2},
            "tier": [{"name": "node", "size": 2, "bandwidth": "1 GB/s", "latency": 1e-4}],
            "storage": {"read": "2 GB/s", "write": "1 GB/s"},
            "probe": {
                "date": "2026-01-01",
                "took_s": 40,
                "python": "3.11",
                "torch": "2.13",
                "penstock": "0.1",
                "kind": "cpu",
                "seen": seen,
                "ranks": 2,
                "threads": 1,
                "memory": "4 GiB",
                "op_s": 1e-6,
                "fresh_bytes_per_s": 2e9,
                "home_write": "1 GB/s",
                "home_read": "1 GB/s",
                "here_write": "1 GB/s",
                "here_read": "2 GB/s",
                "update_s": SIZED,
                "all_reduce_s": [[4096, 1e-4], [1048576, 2e-3]],
                "matmul_s": {"fp32": [[64, 64, 64, 1e-5]], "bf16": [[64, 64, 64, 5e-6]]},
                "attention_s": {"fp32": heads, "bf16": heads},
                **dict.fromkeys(by_precision, BOTH),
            },
        }
    )


@contextmanager
def known_watts() -> Iterator[None]:
    """Let this machine be one of two ranks that draw 100 W each at most, and 5 W at rest."""
    file = probed(take_inventory().fingerprint)
    known = file.accelerator.model_copy(update={"tdp_w": 100.0, "idle_w": 5.0})
    save_cluster(file.model_copy(update={"accelerator": known}), here_file())
    try:
        yield
    finally:
        here_file().unlink()
