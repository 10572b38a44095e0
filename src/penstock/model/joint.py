"""Projections of one input as one matmul: q, k and v of attention, gate and up of a SwiGLU.

The weights of a group lie one after another in one tensor, and each parameter is a view of its
rows: names, gradients, optimizer and checkpoints see them apart. The backward pass has one matmul
for the gradient of the input, where three (or two) would each write a result that another kernel
adds up. It needs the gradients of the outputs side by side, so kernels of our own write them there:
the rotation's gradient and SwiGLU's. docs/design/speed.md has the gain.

Shape suffixes: n tokens, b batch, s sequence, d hidden, h heads, k kv heads, e head width, f ffn,
j all joint outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class JointWeights:
    """The weights of linear layers with the same input, one after another in one tensor.

    Each parameter becomes a view of its rows: who updates or loads one in place updates both.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.linears = tuple(linears)
        self.weight_jd = torch.cat([linear.weight.detach() for linear in self.linears])
        rows = self.weight_jd.split([len(linear.weight) for linear in self.linears])
        for linear, part in zip(self.linears, rows, strict=True):
            linear.weight.data = part

    @property
    def in_place(self) -> bool:
        """Return whether the parameters are still views of the joint tensor."""
        at = self.weight_jd.data_ptr()
        for linear in self.linears:
            if linear.weight.data_ptr() != at:
                return False
            at += linear.weight.nbytes
        return True


def plain_linear(linear: nn.Module) -> bool:
    """Return whether a layer is a trained matrix and nothing else: no bias, adapter or fp8."""
    return type(linear) is nn.Linear and linear.bias is None and linear.weight.requires_grad


class RotatedProjections(torch.autograd.Function):
    """q, k and v of a hidden state, q and k rotated: views of one tensor, [b, s, heads, e]."""

    @staticmethod
    def forward(
        ctx: Any,
        x_bsd: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        v_weight: Tensor,
        weight_jd: Tensor,
        cos_sin: Tensor,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [len(q_weight), len(k_weight), len(v_weight)]
        y_bsj = torch.ops.penstock.rotated_product(
            x_bsd, weight_jd, cos_sin, width, sizes[0] + sizes[1]
        )
        ctx.save_for_backward(x_bsd, weight_jd, cos_sin)
        ctx.sizes = sizes
        q, k, v = y_bsj.split(sizes, -1)
        return (
            q.unflatten(-1, (-1, width)),
            k.unflatten(-1, (-1, width)),
            v.unflatten(-1, (-1, width)),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_bsd, weight_jd, cos_sin = ctx.saved_tensors
        dq_bshe, dk_bske, dv_bske = grads
        dy_nj = torch.ops.penstock.joined_rotation_gradient(dq_bshe, dk_bske, dv_bske, cos_sin)
        dx_nd = dy_nj @ weight_jd
        dweights = (dy_nj.T @ x_bsd.flatten(0, 1)).split(ctx.sizes)
        return dx_nd.view_as(x_bsd), *dweights, None, None, None


class JointSwiGLU(torch.autograd.Function):
    """down(silu(gate(x)) × up(x)); the product before `down` is made again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x_bsd: Tensor,
        gate_fd: Tensor,
        up_fd: Tensor,
        down_df: Tensor,
        weight_jd: Tensor,
    ) -> Tensor:
        x_nd = x_bsd.flatten(0, -2)
        # Two matmuls: one of 2 × 2048 outputs is slower on an H200, one of 2 × 8192 no faster.
        gate_nf, up_nf = x_nd @ gate_fd.T, x_nd @ up_fd.T
        y_nd = (F.silu(gate_nf) * up_nf) @ down_df.T
        ctx.save_for_backward(x_nd, gate_nf, up_nf, down_df, weight_jd)
        return y_nd.view_as(x_bsd)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_bsd: Tensor) -> tuple[Tensor | None, ...]:
        x_nd, gate_nf, up_nf, down_df, weight_jd = ctx.saved_tensors
        dy_nd = dy_bsd.flatten(0, -2)
        dmade_nf = dy_nd @ down_df
        joint_nj, made_nf = torch.ops.penstock.gated_gradient(dmade_nf, gate_nf, up_nf)
        ddown_df = dy_nd.T @ made_nf
        dx_nd = joint_nj @ weight_jd
        dgate_fd, dup_fd = (joint_nj.T @ x_nd).chunk(2)
        return dx_nd.view_as(dy_bsd), dgate_fd, dup_fd, ddown_df, None


@torch.library.custom_op("penstock::rotated_product", mutates_args=())
def rotated_product(
    x_bsd: Tensor, weight_jd: Tensor, cos_sin: Tensor, width: int, turned: int
) -> Tensor:
    """Return x times the transposed weight, with its first `turned` columns rotated by heads."""
    y_bsj = F.linear(x_bsd, weight_jd)
    if y_bsj.is_cuda and y_bsj.dtype != torch.float64:
        from penstock.model.kernels import joint as kernels

        kernels.rotate(y_bsj, y_bsj, cos_sin, width, turned)
    else:
        heads = y_bsj[..., :turned].unflatten(-1, (-1, width))
        heads.copy_(_turned(heads, cos_sin))
    return y_bsj


@rotated_product.register_fake
def _(x_bsd: Tensor, weight_jd: Tensor, cos_sin: Tensor, width: int, turned: int) -> Tensor:
    return x_bsd.new_empty(*x_bsd.shape[:-1], len(weight_jd))


@torch.library.custom_op("penstock::joined_rotation_gradient", mutates_args=())
def joined_rotation_gradient(
    dq_bshe: Tensor, dk_bske: Tensor, dv_bske: Tensor, cos_sin: Tensor
) -> Tensor:
    """Return the gradients of the projections side by side, q's and k's rotated back."""
    parts = [part.flatten(2) for part in (dq_bshe, dk_bske, dv_bske)]
    if dq_bshe.is_cuda and dq_bshe.dtype != torch.float64:
        from penstock.model.kernels import joint as kernels

        made_bsj = dq_bshe.new_empty(*dq_bshe.shape[:2], sum(part.shape[-1] for part in parts))
        into = made_bsj.split([part.shape[-1] for part in parts], -1)
        for part, place, turn in zip(parts, into, (True, True, False), strict=True):
            width = dq_bshe.shape[-1]
            turned = part.shape[-1] if turn else 0
            kernels.rotate(part, place, cos_sin, width, turned, back=True)
        return made_bsj.flatten(0, 1)
    back = torch.stack((cos_sin[0], -cos_sin[1]))
    turned = [_turned(part, back).flatten(2) for part in (dq_bshe, dk_bske)]
    return torch.cat((*turned, parts[2]), -1).flatten(0, 1)


@joined_rotation_gradient.register_fake
def _(dq_bshe: Tensor, dk_bske: Tensor, dv_bske: Tensor, cos_sin: Tensor) -> Tensor:
    rows = dq_bshe.shape[0] * dq_bshe.shape[1]
    heads = dq_bshe.shape[2] + dk_bske.shape[2] + dv_bske.shape[2]
    return dq_bshe.new_empty(rows, heads * dq_bshe.shape[3])


@torch.library.custom_op("penstock::gated_gradient", mutates_args=())
def gated_gradient(dmade_nf: Tensor, gate_nf: Tensor, up_nf: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up side by side, and silu(gate) × up."""
    if gate_nf.is_cuda and gate_nf.dtype != torch.float64:
        from penstock.model.kernels import joint as kernels

        return kernels.gated_gradient(dmade_nf, gate_nf, up_nf)
    bent_nf, slope_nf = F.silu(gate_nf), gate_nf.sigmoid()
    slope_nf = slope_nf * (1 + gate_nf * (1 - slope_nf))
    joint_nj = torch.cat((dmade_nf * up_nf * slope_nf, dmade_nf * bent_nf), -1)
    return joint_nj, bent_nf * up_nf


@gated_gradient.register_fake
def _(dmade_nf: Tensor, gate_nf: Tensor, up_nf: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = gate_nf.shape
    return gate_nf.new_empty(rows, 2 * width), gate_nf.new_empty(rows, width)


def _turned(x_bshe: Tensor, cos_sin: Tensor) -> Tensor:
    cos, sin = cos_sin.to(x_bshe.dtype).unsqueeze(-2)
    a, b = x_bshe.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
