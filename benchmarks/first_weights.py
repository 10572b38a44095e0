"""What the first values of the embedding are worth: short runs over its scale and the rate.

    python benchmarks/first_weights.py [--tokens 1000000] [--processes 12]

Each run trains a small decoder on `stdlib` (2 % held out) with AdamW and a cosine to zero, on the
GPU when there is one, and prints its validation loss. The table in docs/log.md comes from this.
"""

import argparse
import math
import multiprocessing
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F

from penstock.catalog.shapes import ModelShape
from penstock.data.build.open import open_dataset
from penstock.data.read.stream import Stream
from penstock.model.decoder import Decoder
from penstock.model.initialize import init_std

SEQUENCE = 256
BATCH_TOKENS = 2048
SHAPES = {
    "2 × 256, own head": ModelShape(2, 256, 4, 2, 512, 4096),
    "3 × 256, tied head": ModelShape(3, 256, 4, 2, 768, 4096, tied=True),
}


@dataclass(frozen=True)
class Case:
    shape: str
    scale: float  # standard deviation of the embedding's first values
    rate: float
    tokens: int


def validation_loss(case: Case) -> tuple[Case, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stream = Stream(open_dataset("stdlib"), SEQUENCE, seed=0, holdout=0.02)
    model = Decoder(SHAPES[case.shape])
    for name, param in model.named_parameters():
        if not name.endswith("norm.weight"):
            own = case.scale if name == "embed.weight" else init_std(name, model.shape)
            torch.nn.init.normal_(param, 0.0, own)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)

    def loss_of(samples: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            logits = model(samples[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), samples[:, 1:].flatten())

    steps, batch = case.tokens // BATCH_TOKENS, BATCH_TOKENS // SEQUENCE
    warmup = max(1, steps // 20)
    for step in range(steps):
        decay = 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / max(1, steps - warmup)))
        optimizer.param_groups[0]["lr"] = case.rate * min((step + 1) / warmup, decay)
        samples = torch.from_numpy(stream.read(step * batch, (step + 1) * batch)).to(device)
        loss_of(samples).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        parts = torch.from_numpy(stream.read_held_out(0, stream.held_out)).split(32)
        total = sum(loss_of(part.to(device)).item() * len(part) for part in parts)
    return case, total / stream.held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=12)
    asked = parser.parse_args()
    open_dataset("stdlib")  # built once, before the processes want it
    grid = product(SHAPES, (0.02, 0.1, 0.3, 1.0), (2e-3, 3e-3, 4e-3))
    cases = [Case(*values, asked.tokens) for values in grid]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for case, loss in pool.imap(validation_loss, cases):
            print(
                f"{case.shape:<20} scale {case.scale:<5} rate {case.rate:<6} {loss:.3f}", flush=True
            )


if __name__ == "__main__":
    main()
