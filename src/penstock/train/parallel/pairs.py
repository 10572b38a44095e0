"""A runner for pairs of answers: `train.objective` dpo and ipo, for ranks that hold all layers.

The reference is the model that the run began with. With an adapter it is the same model with the
adapter off: one more forward pass, no second copy. Otherwise its log-probabilities come with the
samples (`train/reference.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from penstock.model.adapter.lora import adapters_off
from penstock.model.decoder import Decoder
from penstock.model.open.module import TransformersModel
from penstock.model.preference import PairRewards, compare
from penstock.model.row_loss import row_cross_entropy
from penstock.run.schema.train import TrainSection
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.runner import KeepGoing, PlainRunner, always

FIGURES = 3  # sums that `PairRewards.sums` returns


@dataclass
class PairRunner(PlainRunner):
    """A runner whose microbatches are pairs; losses are summed over pairs, not over tokens."""

    train: TrainSection = field(default_factory=TrainSection)
    adapted: bool = False  # the reference is the model with its adapter off

    def __post_init__(self) -> None:
        self.model = sum_rows(self.parts.single_module)
        self.sums = torch.zeros(FIGURES, dtype=torch.float64)  # of the last batch

    def figures(self) -> Tensor:
        return self.sums

    def backward(self, batch: list[Microbatch], tokens: int) -> Tensor:
        """Accumulate gradients; `tokens` are the pairs of the global batch."""
        return self._sum(batch, lambda micro: micro.weight / tokens, lambda loss: loss.backward())

    @torch.no_grad()
    def evaluate(self, batch: list[Microbatch], keep_going: KeepGoing = always) -> Tensor | None:
        with self.parts.evaluating():
            return self._sum(batch, lambda micro: micro.weight, None, keep_going)

    @torch.no_grad()
    def log_probs(self, batch: Sequence[Microbatch]) -> Tensor:
        """Return the log-probability of every answer: [pairs, 2], chosen and rejected."""
        with self.parts.evaluating():
            return torch.cat([-self._losses(micro).view(-1, 2) for micro in batch])

    def _sum(
        self,
        batch: list[Microbatch],
        share: Callable[[Microbatch], float],
        use: Callable[[Tensor], None] | None,
        keep_going: KeepGoing = always,
    ) -> Tensor | None:
        device = batch[0].inputs_bs.device
        total = torch.zeros((), device=device, dtype=torch.float64)
        sums = torch.zeros(FIGURES, device=device, dtype=torch.float64)
        for number, micro in enumerate(batch, 1):
            if not keep_going():
                return None
            if use:
                self._before_pass(last=number == len(batch))
            rewards = self._rewards(micro)
            loss = rewards.loss_p.sum() * share(micro)
            if use:
                use(loss)
            total += loss.detach()
            sums += rewards.sums() * share(micro)
        self.sums = sums
        return total

    def _rewards(self, micro: Microbatch) -> PairRewards:
        assert micro.counted_bs is not None
        reference_b = self._reference(micro)
        ratios_b = -self._losses(micro) - reference_b
        return compare(
            self.train.objective, self.train.preference, ratios_b, micro.counted_bs.sum(1)
        )

    @torch.no_grad()
    def _reference(self, micro: Microbatch) -> Tensor:
        if not self.adapted:
            assert micro.reference_b is not None, "computed before the first step"
            return micro.reference_b
        with adapters_off(self.model):
            return -self._losses(micro)

    def _losses(self, micro: Microbatch) -> Tensor:
        return self.model(micro.inputs_bs, None, micro.targets_bs, micro.counted_bs)


def sum_rows(model: nn.Module) -> nn.Module:
    """Let a model return the loss of each sequence; switch dropout off, as the policy is compared
    with a reference that has none."""
    if isinstance(model, Decoder):
        model.loss = row_cross_entropy
    else:
        assert isinstance(model, TransformersModel)
        model.chunked_loss, model.sums_rows = row_cross_entropy, True
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
