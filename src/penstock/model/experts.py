"""The routed experts of a layer: SwiGLUs of one size, stored as three stacks of matrices.

Rows come sorted by expert. Only the device knows how many rows each expert has, so the host need
not wait for it. Shape suffixes: n rows, e experts, d hidden, f width of an expert, i in, o out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate


class Experts(nn.Module):
    """The experts of a layer; if they are spread over ranks, `forward` uses those of this rank."""

    def __init__(
        self, experts: int, hidden: int, ffn: int, bias: bool = False, clamped: bool = False
    ) -> None:
        super().__init__()
        self.gated = clamped_swiglu if clamped else swiglu
        self.gate = nn.Parameter(torch.empty(experts, ffn, hidden))
        self.up = nn.Parameter(torch.empty(experts, ffn, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, ffn))
        for stack in (self.gate, self.up, self.down):
            nn.init.normal_(stack, std=0.02)
        self.gate_bias = nn.Parameter(torch.zeros(experts, ffn)) if bias else None
        self.up_bias = nn.Parameter(torch.zeros(experts, ffn)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(experts, hidden)) if bias else None

    def forward(self, rows_nd: Tensor, end_e: Tensor) -> Tensor:
        inner_nf = self.gated(
            _linear(rows_nd, self.gate, self.gate_bias, end_e),
            _linear(rows_nd, self.up, self.up_bias, end_e),
        )
        return _linear(inner_nf, self.down, self.down_bias, end_e)


def swiglu(gate_nf: Tensor, up_nf: Tensor) -> Tensor:
    return F.silu(gate_nf) * up_nf


def clamped_swiglu(gate_nf: Tensor, up_nf: Tensor) -> Tensor:
    """Compute the gate of gpt-oss: both sides within 7, a steeper sigmoid, and one added to up."""
    gate_nf = gate_nf.clamp(max=7.0)
    return (up_nf.clamp(-7.0, 7.0) + 1) * gate_nf * (1.702 * gate_nf).sigmoid()


def _linear(x_ni: Tensor, stack_eoi: Tensor, bias_eo: Tensor | None, end_e: Tensor) -> Tensor:
    made_no = grouped_matmul(x_ni, _local_experts(stack_eoi), end_e)
    return (
        made_no if bias_eo is None else AddExpertBias.apply(made_no, _local_experts(bias_eo), end_e)
    )


class AddExpertBias(torch.autograd.Function):
    """Rows plus the bias of their expert. Its gradient is a product with ones and zeros, which sums
    in the same order every time; torch's own for a look-up does not on CUDA.
    """

    @staticmethod
    def forward(ctx: Any, x_no: Tensor, bias_eo: Tensor, end_e: Tensor) -> Tensor:
        at_n = torch.arange(len(x_no), device=end_e.device, dtype=end_e.dtype)
        expert_n = torch.searchsorted(end_e, at_n, right=True)
        ctx.save_for_backward(expert_n)
        ctx.experts = len(bias_eo)
        return x_no + bias_eo[expert_n]

    @staticmethod
    def backward(ctx: Any, grad_no: Tensor) -> tuple[Tensor, Tensor, None]:
        (expert_n,) = ctx.saved_tensors
        each_e = torch.arange(ctx.experts, device=expert_n.device)
        mine_en = (each_e.unsqueeze(1) == expert_n).to(grad_no.dtype)
        return grad_no, mine_en @ grad_no, None


def grouped_matmul(x_ni: Tensor, weight_eoi: Tensor, end_e: Tensor) -> Tensor:
    """Multiply each expert's matrix by its rows. An expert without rows has a gradient of zero."""
    _, out, width = weight_eoi.shape
    fits = x_ni.is_cuda and x_ni.dtype == torch.bfloat16 and out % 8 == 0 and width % 8 == 0
    if not fits or len(x_ni) == 0:
        return _matmul_per_expert(x_ni, weight_eoi, end_e)
    if torch.cuda.get_device_capability(x_ni.device)[0] >= 10:
        weight_eoi = ZeroEmptyExpertGradients.apply(weight_eoi, end_e)
    return F.grouped_mm(x_ni, weight_eoi.transpose(1, 2), offs=end_e)


# Not `torch.compiler.disable`: that imports the compiler, a second for every run without it.
@torch._disable_dynamo  # it asks for the numbers of rows
def _matmul_per_expert(x_ni: Tensor, weight_eoi: Tensor, end_e: Tensor) -> Tensor:
    """Multiply expert by expert, for types, widths and devices that torch has no kernel for."""
    rows = x_ni.split(end_e.diff(prepend=end_e.new_zeros(1)).tolist())
    return torch.cat([x @ w.T for x, w in zip(rows, weight_eoi.unbind(0), strict=True)])


class ZeroEmptyExpertGradients(torch.autograd.Function):
    """An identity that sets the gradients of experts without rows to zero.

    torch's grouped matmul leaves them unwritten on Blackwell (pytorch issue 172439).
    """

    @staticmethod
    def forward(ctx: Any, weight_eoi: Tensor, end_e: Tensor) -> Tensor:
        ctx.save_for_backward(end_e)
        return weight_eoi.view_as(weight_eoi)

    @staticmethod
    def backward(ctx: Any, grad_eoi: Tensor) -> tuple[Tensor, None]:
        (end_e,) = ctx.saved_tensors
        none_e = end_e.diff(prepend=end_e.new_zeros(1)) == 0
        return grad_eoi.masked_fill(none_e.view(-1, 1, 1), 0), None


def _local_experts(stack: Tensor) -> Tensor:
    """Return this rank's experts. Ranks that hold the same ones each have part of the gradient."""
    if not isinstance(stack, DTensor):
        return stack
    grads = [Partial() if isinstance(p, Replicate) else p for p in stack.placements]
    return stack.to_local(grad_placements=grads)
