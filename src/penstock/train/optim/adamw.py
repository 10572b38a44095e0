"""AdamW. For 16-bit parameters the optimizer owns the fp32 master weights.

On CUDA one kernel does a whole update. Elsewhere torch's own does it, or a few lines where bf16 is
rounded stochastically. All of them compute the same.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from xxhash import xxh3_64_intdigest

from penstock.run.schema.train import TrainSection
from penstock.train.parallel.parts import Grads, local_tensor, sharded_like

if TYPE_CHECKING:
    from penstock.train.optim.adamw_kernel import FusedAdamW


_EXPERT_BIAS = re.compile(r"\bexperts\.\w+_bias$")  # one for each expert, and still no matrix


class UpdateGroup(NamedTuple):
    """The number formats and device that parameters updated together have in common."""

    device: str
    weight: torch.dtype  # of what is updated: the master, or the parameter itself
    moment: torch.dtype
    grad: torch.dtype
    master: bool

    @property
    def by_kernel(self) -> bool:
        """Return whether one kernel updates them all."""
        return self.device == "cuda" and self.weight != torch.float64


class AdamW:
    """AdamW with weight decay on matrices only, not on norms and biases."""

    def __init__(
        self,
        params: Mapping[str, nn.Parameter],
        masters: Mapping[str, Tensor],
        train: TrainSection,
    ) -> None:
        self.params, self.train = params, train
        self.updates = 0
        self.moments: dict[str, dict[str, Tensor]] = {}
        for name, param in params.items():
            own = {"master": masters[name]} if name in masters else {}
            weight = local_tensor(masters.get(name, param.detach()))
            dtype = torch.bfloat16 if train.states == "bf16" else at_least_fp32(weight)
            for moment in ("exp_avg", "exp_avg_sq"):
                own[moment] = sharded_like(param, torch.zeros_like(weight, dtype=dtype))
            self.moments[name] = own
        self._groups: dict[UpdateGroup, list[str]] = {}
        self._grouped_for: list[torch.dtype] = []
        self._kernels: dict[UpdateGroup, FusedAdamW] = {}

    @torch.no_grad()
    def prepare(self, grads: Grads) -> None:
        """Do what the host has to do for an update by these gradients, but for the launch."""
        self._group_for(grads)
        for group, names in self._groups.items():
            if group.by_kernel:
                self._kernel(group, names).prepare([grads[name] for name in names])

    @torch.no_grad()
    def step(self, grads: Grads, rate: float, scale: float) -> None:
        """Update all parameters by `scale` × gradient."""
        self.updates += 1
        self._group_for(grads)
        for group, names in self._groups.items():
            own = [grads[name] for name in names]
            if group.by_kernel:
                self._kernel(group, names).step(
                    own,
                    rate=rate,
                    scale=scale,
                    betas=self.train.betas,
                    eps=self.train.eps,
                    updates=self.updates,
                )
            elif torch.bfloat16 in (group.weight, group.moment):
                for name, grad in zip(names, own, strict=True):
                    self._update_rounding(name, grad, rate, scale)
            else:
                for decay in sorted({self.decay(name) for name in names}):
                    some = [name for name in names if self.decay(name) == decay]
                    self._update_by_torch(some, [grads[name] for name in some], rate, scale)

    def warm_up(self, grads: Grads) -> None:
        """Compile the kernels: update a few zeros of each kind, which are thrown away."""
        self._group(grads)
        for group, (name, *_) in self._groups.items():
            param = self.params[name]

            def few(dtype: torch.dtype, device: torch.device = param.device) -> Tensor:
                return torch.zeros(8, dtype=dtype, device=device)

            masters = {name: few(group.weight)} if group.master else {}
            one = AdamW({name: nn.Parameter(few(param.dtype))}, masters, self.train)
            one.step({name: few(group.grad)}, 0.0, 1.0)

    def _group_for(self, grads: Grads) -> None:
        """Group the parameters again if the number formats of the gradients have changed."""
        dtypes = [grads[name].dtype for name in self.params]
        if dtypes != self._grouped_for:
            self._group(grads)
            self._grouped_for = dtypes

    def _group(self, grads: Grads) -> None:
        self._groups, self._kernels = {}, {}
        for name, own in self.moments.items():
            weight, moment = self.weight(name), own["exp_avg"]
            group = UpdateGroup(
                weight.device.type,
                weight.dtype,
                moment.dtype,
                grads[name].dtype,
                "master" in own,
            )
            self._groups.setdefault(group, []).append(name)

    def _kernel(self, group: UpdateGroup, names: list[str]) -> "FusedAdamW":
        if group not in self._kernels:
            from penstock.train.optim.adamw_kernel import (
                FusedAdamW,
            )  # Triton: only CUDA builds have it

            self._kernels[group] = FusedAdamW(
                names,
                [local_tensor(self.params[name].detach()) for name in names],
                [self.weight(name) for name in names] if group.master else None,
                [local_tensor(self.moments[name]["exp_avg"]) for name in names],
                [local_tensor(self.moments[name]["exp_avg_sq"]) for name in names],
                [self.decay(name) for name in names],
            )
        return self._kernels[group]

    def _update_by_torch(
        self, names: list[str], grads: list[Tensor], rate: float, scale: float
    ) -> None:
        """Update parameters that share one weight decay."""
        weights = [self.weight(name) for name in names]
        device = weights[0].device
        torch._fused_adamw_(
            weights,
            [grad.to(weights[0].dtype) for grad in grads],
            [local_tensor(self.moments[name]["exp_avg"]) for name in names],
            [local_tensor(self.moments[name]["exp_avg_sq"]) for name in names],
            [],
            [torch.tensor(float(self.updates), device=device)] * len(names),
            lr=rate,
            beta1=self.train.betas[0],
            beta2=self.train.betas[1],
            weight_decay=self.decay(names[0]),
            eps=self.train.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=torch.tensor(1 / scale, device=device) if scale != 1.0 else None,
        )
        self._copy_masters(names)

    def _update_rounding(self, name: str, grad: Tensor, rate: float, scale: float) -> None:
        """Update in fp32; values kept in bf16 are rounded stochastically."""
        beta1, beta2 = self.train.betas
        mean, square = (local_tensor(self.moments[name][m]) for m in ("exp_avg", "exp_avg_sq"))
        weight = self.weight(name)
        grad = grad.float() * scale
        new_mean = mean.float().lerp(grad, 1 - beta1)
        new_square = square.float().mul(beta2).addcmul(grad, grad, value=1 - beta2)
        root = (new_square / (1 - beta2**self.updates)).sqrt() + self.train.eps
        moved = weight.float() * (1 - rate * self.decay(name))
        moved.addcdiv_(new_mean, root, value=-rate / (1 - beta1**self.updates))
        for kept, new in ((mean, new_mean), (square, new_square), (weight, moved)):
            if kept.dtype == torch.bfloat16:
                new = round_stochastically(new, f"{name}:{self.updates}")
            kept.copy_(new)
        self._copy_masters([name])

    def weight(self, name: str) -> Tensor:
        """Return the tensor that is updated: the master, or the parameter itself."""
        return local_tensor(self.moments[name].get("master", self.params[name].detach()))

    def decay(self, name: str) -> float:
        """Return the weight decay of a parameter."""
        matrix = self.params[name].dim() >= 2 and not _EXPERT_BIAS.search(name)
        return self.train.weight_decay if matrix else 0.0

    def copy_masters(self) -> None:
        """Copy the masters into the parameters, after they have been loaded."""
        self._copy_masters(list(self.moments))

    @torch.no_grad()
    def _copy_masters(self, names: list[str]) -> None:
        for name in names:
            if "master" in self.moments[name]:
                local_tensor(self.params[name].detach()).copy_(self.weight(name))


def at_least_fp32(weight: Tensor) -> torch.dtype:
    """Return the type in which a weight's updates are computed: fp32 or wider."""
    return torch.promote_types(weight.dtype, torch.float32)


def round_stochastically(values: Tensor, what: str) -> Tensor:
    """Round fp32 to bf16 up or down at random, with the odds that keep the mean right.

    Rounding to nearest would lose every update that is smaller than half a step of bf16. The random
    numbers depend on `what` alone (a name and a step), so that replicas round alike.
    """
    draw = torch.Generator(values.device).manual_seed(xxh3_64_intdigest(what.encode()) >> 1)
    noise = torch.empty(values.shape, dtype=torch.int32, device=values.device)
    noise.random_(0, 1 << 16, generator=draw)
    # bf16 is the upper half of fp32: what is added to the lower half carries over or is cut off.
    bits = (values.contiguous().view(torch.int32) + noise) & -(1 << 16)
    return bits.view(torch.float32).bfloat16()
