"""A runner for pairs of answers: `train.objective` dpo, ipo, simpo, orpo, for ranks that hold all
layers.

The reference of dpo and ipo is the model that the run began with. With an adapter it is the same
model with the adapter off: one more forward pass, no second copy. Otherwise its log-probabilities
come with the samples (`train/reference.py`). simpo and orpo have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from penstock.model.adapter.lora import adapters_off
from penstock.model.decoder import Decoder
from penstock.model.open.module import TransformersModel
from penstock.model.preference import PairRewards, compare
from penstock.model.row_loss import token_cross_entropy
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
        self.model = give_token_losses(self.parts.single_module)
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
            return torch.cat([-self._answers(micro).view(-1, 2) for micro in batch])

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
        counted_bs = micro.counted_bs
        assert counted_bs is not None
        objective, section, text_p = self.train.objective, self.train.preference, None
        if objective == "orpo":  # one pass gives both: its answers are part of its sequences
            losses_bs = self._losses(micro, with_chosen_prompts(counted_bs))
            text_p = losses_bs[0::2].sum(1) * micro.token_share
            likely_b = -(losses_bs * counted_bs).sum(1)
        elif self.train.has_reference:
            reference_b = self._reference(micro)
            likely_b = -self._answers(micro) - reference_b
        else:
            likely_b = -self._answers(micro)
        return compare(objective, section, likely_b, counted_bs.sum(1), text_p)

    @torch.no_grad()
    def _reference(self, micro: Microbatch) -> Tensor:
        if not self.adapted:
            assert micro.reference_b is not None, "computed before the first step"
            return micro.reference_b
        with adapters_off(self.model):
            return -self._answers(micro)

    def _answers(self, micro: Microbatch) -> Tensor:
        return self._losses(micro, micro.counted_bs).sum(1)

    def _losses(self, micro: Microbatch, counted_bs: Tensor | None) -> Tensor:
        return self.model(micro.inputs_bs, None, micro.targets_bs, counted_bs)


def with_chosen_prompts(counted_bs: Tensor) -> Tensor:
    """Return the targets that count in the loss, and all before them in the chosen sequences."""
    at_s = torch.arange(1, counted_bs.shape[1] + 1, device=counted_bs.device)
    last_b1 = (counted_bs * at_s).amax(1, keepdim=True)
    chosen_b1 = (torch.arange(len(counted_bs), device=counted_bs.device) % 2 == 0).unsqueeze(1)
    return counted_bs.bool() | (chosen_b1 & (at_s <= last_b1))


def give_token_losses(model: nn.Module) -> nn.Module:
    """Let a model return the loss of each token; switch dropout off, as the policy is compared with
    a reference that has none (without one, as TRL does)."""
    if isinstance(model, Decoder):
        model.loss = token_cross_entropy
    else:
        assert isinstance(model, TransformersModel)
        model.chunked_loss, model.token_losses = token_cross_entropy, True
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
