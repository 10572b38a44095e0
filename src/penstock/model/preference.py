"""Objectives on pairs of answers, as functions of the log-probabilities of whole answers.

    DPO    -log σ(β (r_c - r_r))                  Rafailov et al. 2023, arXiv 2305.18290
    IPO    (r_c / n_c - r_r / n_r - 1 / 2β)²      Azar et al. 2023, arXiv 2310.12036
    SimPO  -log σ(β (p_c - p_r) - γ)              Meng et al. 2024, arXiv 2405.14734
    ORPO   h - β log σ(o(p_c) - o(p_r))           Hong et al. 2024, arXiv 2403.07691

r is how much more likely the model finds an answer than the reference does, log π(y|x) -
log π_ref(y|x), c is the chosen and r the rejected answer, n their tokens. p is the mean over the
tokens of an answer, log π(y|x) / n, and o(p) = p - log(1 - e^p) the logarithm of the odds. h is the
mean cross-entropy of the chosen sequences, prompts included, over their tokens in the batch. IPO is
averaged over tokens, as its authors and TRL do. The reward of an answer is β r; of SimPO and ORPO,
which have no reference, β p.

Shape suffixes: p pairs, b sequences: chosen and rejected take turns.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.run.schema.preference import WITH_REFERENCE, PreferenceSection


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
    objective: str,
    section: PreferenceSection,
    log_ratios_b: Tensor,
    counts_b: Tensor,
    text_p: Tensor | None = None,
) -> PairRewards:
    """Return the loss of every pair; `counts_b` are the tokens of each answer.

    `log_ratios_b` are log-probabilities where the objective has no reference. `text_p` is what the
    chosen sequences add to the loss of their pairs: for orpo.
    """
    counts_b = counts_b.to(log_ratios_b.dtype)
    valid_p = ((counts_b[0::2] > 0) & (counts_b[1::2] > 0)).to(log_ratios_b.dtype)
    mean_b = log_ratios_b / counts_b.clamp(min=1.0)
    if objective == "ipo":
        loss_p = (mean_b[0::2] - mean_b[1::2] - 1 / (2 * section.beta)) ** 2
    elif objective == "orpo":
        odds_b = log_odds(mean_b)
        loss_p = -section.beta * F.logsigmoid(odds_b[0::2] - odds_b[1::2])
        loss_p = loss_p if text_p is None else loss_p + text_p
    else:
        each_b = log_ratios_b if objective == "dpo" else mean_b
        z_p = section.beta * (each_b[0::2] - each_b[1::2]) - (section.gamma or 0.0)
        smoothing = section.label_smoothing
        loss_p = -F.logsigmoid(z_p)
        if smoothing:
            loss_p = (1 - smoothing) * loss_p - smoothing * F.logsigmoid(-z_p)
    rewards_b = section.beta * (log_ratios_b if objective in WITH_REFERENCE else mean_b).detach()
    return PairRewards(loss_p * valid_p, rewards_b[0::2], rewards_b[1::2], valid_p)


def log_odds(mean_b: Tensor) -> Tensor:
    """Return log(e^p / (1 - e^p)) of logarithms p of probabilities.

    A certain answer, p = 0, has infinite odds; so has a row without tokens. Both are taken for the
    most likely answer below it, and get no gradient.
    """
    mean_b = mean_b.clamp(max=-torch.finfo(mean_b.dtype).eps)
    # Each branch is exact on its side of 1/2 only.
    near_b = torch.log(-torch.expm1(mean_b))
    far_b = torch.log1p(-torch.exp(mean_b))
    return mean_b - torch.where(mean_b > -0.6931471805599453, near_b, far_b)
