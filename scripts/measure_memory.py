"""Peak memory of Penstock's decoder on one accelerator, as rows that `penstock backtest` reads.

    PYTHONPATH=src python scripts/measure_memory.py > benchmarks/facts/memory_own.csv

Each case trains three steps under FSDP2 as a run does and reports the last two. It needs a CUDA
device and nothing of Penstock but the decoder and the presets.
"""

import csv
import gc
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from penstock.catalog import models
from penstock.model.decoder import Decoder
from penstock.plan.backtest.memory_blanks import widths

# Preset, sequences of a microbatch, tokens of a sequence, microbatches of a step.
CASES = [
    ("llama-1b", 1, 2048, 1),
    ("llama-1b", 4, 2048, 1),
    ("llama-1b", 4, 2048, 2),
    ("llama-1b", 16, 2048, 1),
    ("llama-1b", 2, 8192, 1),
    ("llama-350m", 16, 1024, 1),
    ("llama-160m", 32, 1024, 2),
    ("llama-3b", 4, 2048, 1),
    ("llama-3b", 4, 2048, 2),
    ("qwen3-4b", 2, 4096, 1),
    ("llama2-7b", 2, 2048, 1),
    ("tinyllama", 8, 2048, 2),
    ("qwen3-0.6b", 8, 4096, 4),
    ("smollm2-1.7b", 4, 8192, 1),
    ("llama-1b", 32, 2048, 1),
    ("llama-8b", 1, 2048, 1),
]
COLUMNS = [
    "source",
    "model_name",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "gpu",
    "gpu_mem_gib",
    "num_gpus",
    "dp",
    "sharding",
    "microbatch",
    "global_batch_seqs",
    "recompute",
    "precision",
    "peak_mem_gib",
    "reserved_gib",
    "mem_metric",
    "component",
    "oom",
    "framework",
    "notes",
]


def peak(preset: str, microbatch: int, sequence: int, microbatches: int) -> tuple[int, int] | None:
    """Bytes in use and reserved at the peak; None when memory runs out."""
    shape = models.preset(preset)
    try:
        with torch.device("cuda"):
            model = Decoder(shape)
        for module in [*model.layers, model]:
            fully_shard(module, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        for step in range(3):
            if step == 1:
                torch.cuda.reset_peak_memory_stats()
            for _ in range(microbatches):
                tokens = torch.randint(0, shape.vocab, (microbatch, sequence), device="cuda")
                logits = model(tokens).float().flatten(0, 1)
                loss = F.cross_entropy(logits, tokens.flatten(), reduction="sum")
                del logits
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def row(case: tuple[str, int, int, int]) -> dict[str, object]:
    preset, microbatch, sequence, microbatches = case
    found = peak(*case)
    gc.collect()
    torch.cuda.empty_cache()
    shape = models.preset(preset)
    gib = [round(size / 2**30, 3) for size in found] if found else ["", ""]
    free, total = torch.cuda.mem_get_info()
    outside = (total - free - torch.cuda.memory_reserved()) / 2**30
    return {
        "source": "Penstock decoder",
        "model_name": models.find(preset).title,
        **widths(shape),
        "seq_len": sequence,
        "gpu": torch.cuda.get_device_name().removeprefix("NVIDIA "),
        "gpu_mem_gib": round(total / 2**30, 1),
        "num_gpus": 1,
        "dp": 1,
        "sharding": "fsdp2",
        "microbatch": microbatch,
        "global_batch_seqs": microbatch * microbatches,
        "recompute": "none",
        "precision": "bf16",
        "peak_mem_gib": gib[0],
        "reserved_gib": gib[1],
        "mem_metric": "torch max_memory_allocated GiB",
        "component": "total",
        "oom": int(found is None),
        "framework": "penstock",
        "notes": f"torch {torch.__version__}; {outside:.2f} GiB outside the allocator",
    }


def main() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for case in CASES:
        writer.writerow(row(case))
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
