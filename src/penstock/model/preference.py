"""Objectives on pairs of answers, as functions of the log-probabilities of whole answers.

    DPO  -log σ(β (r_c - r_r))               Rafailov et al. 2023, arXiv 2305.18290
    IPO  (r_c / n_c - r_r / n_r - 1 / 2β)²   Azar et al. 2023, arXiv 2310.12036

r is how much more likely the model finds an answer than the reference does, log π(y|x) -
log π_ref(y|x), c is the chosen and r the rejected answer, n their tokens. IPO is averaged over
tokens, as its authors and TRL do. β r is the reward of an answer.

Shape suffixes: p pairs, b sequences: chosen and rejected take turns.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.run.schema.preference import PreferenceSection


@dataclass(frozen=True)
class PairRewards:
    """The loss and the rewards of each pair. A pair without tokens that count has none."""

    loss_p: Tensor
    chosen_p: Tensor
    rejected_p: Tensor
    valid_p: Tensor  # 1 or 0

    def sums(self) -> Tensor:
        """Return, summed over the pairs: rewards of both answers, and how often the chosen one has
        the higher."""
        right_p = (self.chosen_p > self.rejected_p).to(self.chosen_p.dtype)
        each = torch.stack((self.chosen_p, self.rejected_p, right_p))
        return (each * self.valid_p).detach().double().sum(1)


def compare(
    objective: str, section: PreferenceSection, log_ratios_b: Tensor, counts_b: Tensor
) -> PairRewards:
    """Return the loss of every pair; `counts_b` are the tokens of each answer."""
    chosen_p, rejected_p = log_ratios_b[0::2], log_ratios_b[1::2]
    counts_b = counts_b.to(log_ratios_b.dtype)
    valid_p = ((counts_b[0::2] > 0) & (counts_b[1::2] > 0)).to(log_ratios_b.dtype)
    if objective == "ipo":
        mean_b = log_ratios_b / counts_b.clamp(min=1.0)
        loss_p = (mean_b[0::2] - mean_b[1::2] - 1 / (2 * section.beta)) ** 2
    else:
        z_p, smoothing = section.beta * (chosen_p - rejected_p), section.label_smoothing
        loss_p = -F.logsigmoid(z_p)
        if smoothing:
            loss_p = (1 - smoothing) * loss_p - smoothing * F.logsigmoid(-z_p)
    rewards_b = section.beta * log_ratios_b.detach()
    return PairRewards(loss_p * valid_p, rewards_b[0::2], rewards_b[1::2], valid_p)
