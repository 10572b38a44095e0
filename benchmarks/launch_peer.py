"""The peer of `launch.py`: a script for torchrun that saves every ten steps and goes on from there.

    torchrun … launch_peer.py FOLDER STEP_S

What one would write without Penstock: DistributedDataParallel over gloo, a decoder of the size that
the benchmark gives Penstock, `torch.save` by rank 0. Each step is a line of FOLDER/steps: its
number and the time.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQUENCE, ROWS = 2, 32, 4, 64, 300, 16, 4
SAVE_STEPS = 10


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, FFN, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask, is_causal=True))


def main(folder: Path, step_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first, saved = 1, folder / "saved.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    parallel = DistributedDataParallel(model)
    with (folder / "steps").open("a") as steps:
        for step in range(first, 1_000_000):
            tokens = torch.randint(VOCAB, (ROWS, SEQUENCE + 1))
            time.sleep(step_s)
            logits = parallel(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(step, time.time(), file=steps, flush=True)
                if step % SAVE_STEPS == 0:
                    aside = folder / "saving.pt"
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state | {"step": step}, aside)
                    os.replace(aside, saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
