"""A mixture of experts: each token goes to the few experts that its router scores highest.

No expert has a capacity and no token is dropped. Pairs of token and expert are sorted by expert,
the experts work through them in one grouped matmul, and each token sums the results of its experts.

Shape suffixes: b batch, s sequence, t tokens, d hidden, e experts, k experts of a token, n pairs (t
× k) in the order of their experts, f width of an expert.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.experts import Experts
from penstock.model.layers import SwiGLU
from penstock.model.rows import ReorderRows, RepeatRows, inverse_order

# (experts, rows_nd, end_e) -> what the experts make of the rows; `end_e` is where each one's end.
RunExperts = Callable[[nn.Module, Tensor, Tensor], Tensor]


class MoE(nn.Module):
    """A mixture of experts in the place of a dense layer's SwiGLU.

    `balance` is added to the scores only when experts are chosen: it moves tokens towards experts
    that got few, and has no gradient. `load` counts the tokens that each expert got since it was
    last set to zero. Expert parallelism replaces `run_experts`.
    """

    balance: Tensor
    load: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.active = shape.experts_active
        self.sigmoid = shape.router == "sigmoid"
        self.normalised, self.scale = shape.router_normalised, shape.routed_scale
        self.groups, self.groups_active = shape.expert_groups, shape.groups_active
        self.router = Router(shape.hidden, shape.experts, shape.expert_bias)
        clamped = shape.activation == "clamped"
        self.experts = Experts(
            shape.experts, shape.hidden, shape.expert_ffn, shape.expert_bias, clamped
        )
        shared = shape.shared_experts * shape.expert_ffn
        self.shared = SwiGLU(shape.hidden, shared) if shared else None
        self.register_buffer("balance", torch.zeros(shape.experts))
        self.register_buffer(
            "load", torch.zeros(shape.experts, dtype=torch.int64), persistent=False
        )
        self.run_experts: RunExperts = run_local_experts

    def forward(self, x_bsd: Tensor) -> Tensor:
        x_td = x_bsd.flatten(0, -2)
        weight_tk, choice_tk = self.route(x_td)
        expert_n, order_n = choice_tk.flatten().sort(stable=True)
        back_n = inverse_order(order_n)
        each_e = torch.arange(len(self.balance), device=expert_n.device)
        end_e = torch.searchsorted(expert_n, each_e, right=True, out_int32=True)
        rows_nd = self.run_experts(
            self.experts, RepeatRows.apply(x_td, self.active, order_n, back_n), end_e
        )
        visits_tkd = ReorderRows.apply(rows_nd, back_n, order_n).unflatten(0, (-1, self.active))
        y_td = torch.einsum("tk,tkd->td", weight_tk.to(x_td.dtype), visits_tkd)
        if self.training and y_td.requires_grad:
            y_td = self.count_tokens(y_td, choice_tk)
        y_bsd = y_td.view_as(x_bsd)
        return y_bsd if self.shared is None else y_bsd + self.shared(x_bsd)

    def route(self, x_td: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of each token's experts, and which experts they are."""
        logit_te = self.router(x_td)
        score_te = logit_te.sigmoid() if self.sigmoid else logit_te.softmax(-1)
        wanted_te = score_te.detach() + self.balance
        if self.groups:
            wanted_te = self.in_best_groups(wanted_te)
        choice_tk = wanted_te.topk(self.active, sorted=False).indices
        weight_tk = score_te.gather(1, choice_tk)
        if self.normalised:
            weight_tk = weight_tk / (weight_tk.sum(-1, keepdim=True) + 1e-20)
        return weight_tk * self.scale, choice_tk

    def in_best_groups(self, wanted_te: Tensor) -> Tensor:
        """Return the scores with those of all but a token's best groups at minus infinity.

        A group counts by its two best experts with sigmoid scores (DeepSeek-V3), by its best one
        with softmax scores (DeepSeek-V2).
        """
        wanted_tge = wanted_te.unflatten(1, (self.groups, -1))
        group_tg = wanted_tge.topk(2 if self.sigmoid else 1, sorted=False).values.sum(-1)
        best_tg = group_tg.topk(self.groups_active, sorted=False).indices
        left_tg = torch.ones_like(group_tg, dtype=torch.bool).scatter(1, best_tg, False)
        return wanted_tge.masked_fill(left_tg.unsqueeze(-1), -torch.inf).flatten(1)

    @torch._disable_dynamo  # what it does in the backward pass is no part of a graph
    def count_tokens(self, y_td: Tensor, choice_tk: Tensor) -> Tensor:
        """Return `y_td` unchanged; its backward pass adds this batch's tokens to `load`."""
        return CountTokens.apply(y_td, choice_tk, self.load)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MoE":
        """Move the module, but keep `balance` wide: in a narrower type small changes get lost."""
        balance = self.balance
        super()._apply(fn, recurse)
        if self.balance.dtype != balance.dtype:
            self.balance = balance.to(self.balance.device)
        return self


class Router(nn.Module):
    """A score of each expert for each token, in float32 at least: near ties must have the same
    order in every layout.
    """

    def __init__(self, hidden: int, experts: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.bias = nn.Parameter(torch.zeros(experts)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x_td: Tensor) -> Tensor:
        wide = torch.promote_types(x_td.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x_td.to(wide), self.weight.to(wide), bias)


class CountTokens(torch.autograd.Function):
    """An identity whose backward pass counts the tokens of each expert.

    Counting there and not in forward, a token counts once although its layer may be recomputed, and
    a token that the loss does not depend on (padding) does not count: its gradient is exactly zero.
    So all layouts get the same numbers, and evaluation counts nothing.
    """

    @staticmethod
    def forward(ctx: Any, y_td: Tensor, choice_tk: Tensor, load_e: Tensor) -> Tensor:
        ctx.save_for_backward(choice_tk)
        ctx.load_e = load_e  # not saved: it changes before backward, and that is the purpose
        return y_td.view_as(y_td)

    @staticmethod
    def backward(ctx: Any, grad_td: Tensor) -> tuple[Tensor, None, None]:
        (choice_tk,) = ctx.saved_tensors
        trained_tk = grad_td.any(-1, keepdim=True).expand_as(choice_tk).long()
        ctx.load_e.index_add_(0, choice_tk.flatten(), trained_tk.flatten())
        return grad_td, None, None


def run_local_experts(experts: nn.Module, rows_nd: Tensor, end_e: Tensor) -> Tensor:
    """Run the experts, all of which are on this rank."""
    return experts(rows_nd, end_e)
