"""Small tables of measured runs for the tests of the backtest."""

import csv
from pathlib import Path

from penstock.plan.backtest.rows import MeasuredRow, read

THROUGHPUT: dict[str, object] = {
    "source": "lab",
    "model_name": "own 1B",
    "layers": 16,
    "hidden": 2048,
    "ffn_hidden": 8192,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 32000,
    "seq_len": 2048,
    "gpu": "H100-80GB",
    "num_gpus": 8,
    "tp": 1,
    "pp": 1,
    "microbatch": 1,
    "global_batch_seqs": 64,
    "sharding": "zero3",
    "recompute": "none",
    "precision": "bf16",
    "framework": "torchtitan",
    "notes": "",
    "kind": "pretrain",
    "experts": "",
    "topk": "",
    "moe_ffn_hidden": "",
    "step_time_s": 1.0,
}
MEMORY: dict[str, object] = {
    **{k: v for k, v in THROUGHPUT.items() if k != "step_time_s"},
    "peak_mem_gib": 40.0,
    "reserved_gib": "",
    "component": "total",
    "oom": "0",
}
MOE = {"experts": 8, "topk": 2, "moe_ffn_hidden": 4096}


def write(path: Path, *changes: dict[str, object], base: dict[str, object] = THROUGHPUT) -> Path:
    """A CSV with one row per change of the base row."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(base))
        table.writeheader()
        table.writerows(base | change for change in changes)
    return path


def rows(path: Path, *changes: dict[str, object]) -> list[MeasuredRow]:
    """The same rows, read."""
    found = read(write(path, *changes))[1]
    assert all(row.job for row in found), [row.skipped for row in found]
    return found
