"""One short run for the comparisons of data: the trainer's model, optimizer and schedule.

Only what is compared differs between two runs: first weights come from the seed alone, and the
caller says which samples stand at which positions.
"""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.catalog.shapes import ModelShape
from penstock.data.read.dataset import Dataset
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.run.schema.train import TrainSection, choose_learning_rate
from penstock.train.optim.optimizer import build_optimizer
from penstock.train.step import LearningRate

DEFAULTS = TrainSection()
EVALUATED = 32  # samples at once
Starts = npt.NDArray[np.int64]  # of samples, tokens
Case = TypeVar("Case")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Scale:
    layers: int
    hidden: int
    sequence: int  # tokens
    batch: int  # samples
    rate: float | None = None  # the peak; as the trainer chooses it if not given
    most_steps: int | None = None

    def shape(self, vocab: int) -> ModelShape:
        heads = self.hidden // 64
        return ModelShape(self.layers, self.hidden, heads, heads, self.hidden // 24 * 64, vocab)


FULL = Scale(layers=6, hidden=384, sequence=512, batch=32)
SMALL = Scale(layers=2, hidden=128, sequence=128, batch=8, most_steps=150)


def train(
    dataset: Dataset,
    scale: Scale,
    seed: int,
    starts: Starts,
    looks: int,
    look: Callable[[Decoder, torch.device], float],
    config: TrainSection = DEFAULTS,
) -> list[float]:
    """Trains once over the samples at `starts` and looks `looks` times, last at the end."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = decoder_on_meta(scale.shape(dataset.vocab))
    initialize(model, device, seed)
    params = dict(model.named_parameters())
    update = build_optimizer(params, {}, config)
    peak = scale.rate or choose_learning_rate(scale.hidden)
    steps = len(starts) // scale.batch
    readings: list[float] = []
    for step in range(steps):
        batch = starts[step * scale.batch : (step + 1) * scale.batch]
        samples = crops(dataset, batch, scale.sequence, device)
        (summed_loss(model, samples) / (scale.batch * scale.sequence)).backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in params.values()]))
        clipped = min(1.0, config.clip / norm)
        rate = LearningRate.of(config, peak, steps).at(step)
        update.step({name: p.grad for name, p in params.items()}, rate, clipped)
        model.zero_grad()
        if (step + 1) * looks // steps > len(readings):
            readings.append(look(model, device))
    return readings


def crops(dataset: Dataset, starts: Starts, sequence: int, device: torch.device) -> Tensor:
    """Inputs are the first `sequence` tokens of each row, targets the last."""
    rows = dataset.crops(starts, sequence + 1).astype(np.int64)
    return torch.from_numpy(rows).to(device)


def summed_loss(model: Decoder, samples: Tensor) -> Tensor:
    with torch.autocast(samples.device.type, torch.bfloat16):
        logits = model(samples[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), samples[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def mean_loss(
    model: Decoder, dataset: Dataset, starts: Starts, sequence: int, device: torch.device
) -> float:
    """Nats per token."""
    parts = [starts[at : at + EVALUATED] for at in range(0, len(starts), EVALUATED)]
    total = sum(summed_loss(model, crops(dataset, part, sequence, device)).item() for part in parts)
    return total / (len(starts) * sequence)


def in_processes(
    work: Callable[[Case], Found], cases: Sequence[Case], processes: int
) -> Iterator[Found]:
    """Several runs share a GPU well: one alone leaves most of it idle."""
    if processes == 1:
        yield from map(work, cases)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(work, cases)


def document_starts(dataset: Dataset) -> Starts:
    parts = [dataset.document_starts(shard) for shard in range(len(dataset.manifest.shards))]
    return np.concatenate(parts)


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"
