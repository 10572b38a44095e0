"""The default run beside a plain DDP loop of the same model: what does the system cost?

`python benchmarks/plain_ddp.py [RUN.toml] [FIELD=VALUE ...]`. The loop is what one would write
without Penstock: the same decoder with its logits and `F.cross_entropy`, DistributedDataParallel,
autocast to bf16, `clip_grad_norm_`, fused AdamW, random tokens that are already in memory. Both
take turns, three times; medians of all ranks' steps, the first ones left out. Exit code 1 when the
run is slower than the loop.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from penstock.catalog.shapes import ModelShape
from penstock.ledger.journal.read import read_steps
from penstock.model.initialize import decoder_on_meta, initialize

ROUNDS = 3
SKIPPED = 10  # first steps, which warm up
STEPS = 120
BATCH_TOKENS = 2048  # what the default run chooses


def loop(shape: ModelShape, batch: int, micro: int, sequence: int) -> list[float]:
    """On one rank: seconds of each step."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    decoder = decoder_on_meta(shape)
    initialize(decoder, torch.device("cpu"), 0)
    model = DistributedDataParallel(decoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    seconds = []
    for _ in range(SKIPPED + STEPS):
        began = time.perf_counter()
        tokens = torch.randint(shape.vocab, (batch, sequence + 1))
        for at in range(0, batch, micro):
            model.require_backward_grad_sync = at + micro >= batch
            rows = tokens[at : at + micro]
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(rows[:, :-1])
            flat = logits.float().flatten(0, 1)
            loss = F.cross_entropy(flat, rows[:, 1:].flatten()) * (len(rows) / batch)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - began)
    return seconds[SKIPPED:]


def plain(work: dict, folder: Path) -> list[float]:
    folder.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={work['ranks']}"]
    command = [sys.executable, *torchrun, __file__, "--loop", json.dumps(work), str(folder)]
    threads = str(max(1, (os.cpu_count() or 1) // work["ranks"]))
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": threads})
    return [second for file in folder.iterdir() for second in json.loads(file.read_text())]


def ours(asked: list[str], folder: Path) -> list[float]:
    command = [sys.executable, "-m", "penstock", "train", *asked, "--json"]
    command += [f"dir={folder.parent}", f"name={folder.name}", "evaluate.every=never"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [
        float(total)
        for file in sorted((folder / "journal").glob("*.steps"))
        for total in read_steps(file)["total"][SKIPPED:]
    ]


def main(run: str, overrides: list[str]) -> int:
    length = (SKIPPED + STEPS) * BATCH_TOKENS
    asked = [run, *overrides, f"train.tokens={length}", f"train.batch_tokens={BATCH_TOKENS}"]
    system, bare = [], []
    with tempfile.TemporaryDirectory() as name:
        for turn in range(ROUNDS):
            system += ours(asked, Path(name) / f"ours-{turn}")
            plan = json.loads((Path(name) / f"ours-{turn}" / "plan.json").read_text())
            work = {key: plan[key] for key in ("ranks", "sequence", "batch_tokens", "vocab")}
            work["micro"] = plan["layout"]["microbatch"]
            bare += plain(work, Path(name) / f"plain-{turn}")
    tokens = plan["batch_tokens"]
    rates = [tokens / statistics.median(seconds) for seconds in (system, bare)]
    print(f"penstock train   {rates[0]:10,.0f} tokens/s")
    print(f"plain DDP loop   {rates[1]:10,.0f} tokens/s")
    print(f"ratio            {rates[0] / rates[1]:10.3f}")
    return int(rates[0] < rates[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        from dataclasses import replace

        from penstock.catalog.models import preset

        given = json.loads(sys.argv[2])
        found = loop(
            replace(preset("llama-3m"), vocab=given["vocab"]),
            given["batch_tokens"] // given["sequence"] // given["ranks"],
            given["micro"],
            given["sequence"],
        )
        (Path(sys.argv[3]) / f"{dist.get_rank()}.json").write_text(json.dumps(found))
        dist.destroy_process_group()
    else:
        first = sys.argv[1:] or ["examples/stdlib.toml"]
        sys.exit(main(first[0], first[1:]))
