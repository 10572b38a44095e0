"""AdamW. Where parameters are 16 bits wide, the weights in full precision are its own.

On CUDA one kernel does a whole update; elsewhere torch's own does, or a few lines where bf16 is
rounded at random. All of them compute the same.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from penstock.run.schema.train import TrainSection
from penstock.train.optim.rounding import rounded_at_random
from penstock.train.parallel.parts import Grads, like, local

if TYPE_CHECKING:
    from penstock.train.optim.adamw_kernel import Together


class Alike(NamedTuple):
    """What parameters that are updated together have in common."""

    device: str
    weight: torch.dtype  # of what is updated: the master, or the parameter itself
    moment: torch.dtype
    grad: torch.dtype
    master: bool


class AdamW:
    """Weight decay on matrices only: norms and biases are left alone."""

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
            weight = local(masters.get(name, param.detach()))
            dtype = torch.bfloat16 if train.states == "bf16" else wide(weight)
            for moment in ("exp_avg", "exp_avg_sq"):
                own[moment] = like(param, torch.zeros_like(weight, dtype=dtype))
            self.moments[name] = own
        self._groups: dict[Alike, list[str]] = {}
        self._grouped_for: list[torch.dtype] = []
        self._kernels: dict[Alike, Together] = {}

    @torch.no_grad()
    def step(self, grads: Grads, rate: float, scale: float) -> None:
        self.updates += 1
        dtypes = [grads[name].dtype for name in self.params]
        if dtypes != self._grouped_for:
            self._group(grads)
            self._grouped_for = dtypes
        for alike, names in self._groups.items():
            own = [grads[name] for name in names]
            if alike.device == "cuda" and alike.weight != torch.float64:
                self._by_kernel(alike, names, own, rate, scale)
            elif torch.bfloat16 in (alike.weight, alike.moment):
                for name, grad in zip(names, own, strict=True):
                    self._by_hand(name, grad, rate, scale)
            else:
                for decay in sorted({self.decay(name) for name in names}):
                    some = [name for name in names if self.decay(name) == decay]
                    self._by_torch(some, [grads[name] for name in some], rate, scale)

    def warm_up(self, grads: Grads) -> None:
        """Has kernels compiled: an update of a few zeros of each kind, which nobody keeps."""
        self._group(grads)
        for alike, (name, *_) in self._groups.items():
            param = self.params[name]

            def few(dtype: torch.dtype, device: torch.device = param.device) -> Tensor:
                return torch.zeros(8, dtype=dtype, device=device)

            masters = {name: few(alike.weight)} if alike.master else {}
            one = AdamW({name: nn.Parameter(few(param.dtype))}, masters, self.train)
            one.step({name: few(alike.grad)}, 0.0, 1.0)

    def _group(self, grads: Grads) -> None:
        self._groups, self._kernels = {}, {}
        for name, own in self.moments.items():
            weight, moment = self.weight(name), own["exp_avg"]
            alike = Alike(
                weight.device.type,
                weight.dtype,
                moment.dtype,
                grads[name].dtype,
                "master" in own,
            )
            self._groups.setdefault(alike, []).append(name)

    def _by_kernel(
        self, alike: Alike, names: list[str], grads: list[Tensor], rate: float, scale: float
    ) -> None:
        if alike not in self._kernels:
            from penstock.train.optim.adamw_kernel import (
                Together,
            )  # Triton: only CUDA builds have it

            self._kernels[alike] = Together(
                names,
                [local(self.params[name].detach()) for name in names],
                [self.weight(name) for name in names] if alike.master else None,
                [local(self.moments[name]["exp_avg"]) for name in names],
                [local(self.moments[name]["exp_avg_sq"]) for name in names],
                [self.decay(name) for name in names],
            )
        self._kernels[alike].step(
            grads,
            rate=rate,
            scale=scale,
            betas=self.train.betas,
            eps=self.train.eps,
            updates=self.updates,
        )

    def _by_torch(self, names: list[str], grads: list[Tensor], rate: float, scale: float) -> None:
        """Names of one decay."""
        weights = [self.weight(name) for name in names]
        device = weights[0].device
        torch._fused_adamw_(
            weights,
            [grad.to(weights[0].dtype) for grad in grads],
            [local(self.moments[name]["exp_avg"]) for name in names],
            [local(self.moments[name]["exp_avg_sq"]) for name in names],
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
        self._lower(names)

    def _by_hand(self, name: str, grad: Tensor, rate: float, scale: float) -> None:
        """Reckoned in fp32; what is kept in bf16 is rounded at random."""
        beta1, beta2 = self.train.betas
        mean, square = (local(self.moments[name][m]) for m in ("exp_avg", "exp_avg_sq"))
        weight = self.weight(name)
        grad = grad.float() * scale
        new_mean = mean.float().lerp(grad, 1 - beta1)
        new_square = square.float().mul(beta2).addcmul(grad, grad, value=1 - beta2)
        root = (new_square / (1 - beta2**self.updates)).sqrt() + self.train.eps
        moved = weight.float() * (1 - rate * self.decay(name))
        moved.addcdiv_(new_mean, root, value=-rate / (1 - beta1**self.updates))
        for kept, new in ((mean, new_mean), (square, new_square), (weight, moved)):
            if kept.dtype == torch.bfloat16:
                new = rounded_at_random(new, f"{name}:{self.updates}")
            kept.copy_(new)
        self._lower([name])

    def weight(self, name: str) -> Tensor:
        """What is updated: the master, or the parameter itself."""
        return local(self.moments[name].get("master", self.params[name].detach()))

    def decay(self, name: str) -> float:
        return self.train.weight_decay if self.params[name].dim() >= 2 else 0.0

    def lower(self) -> None:
        self._lower(list(self.moments))

    @torch.no_grad()
    def _lower(self, names: list[str]) -> None:
        for name in names:
            if "master" in self.moments[name]:
                local(self.params[name].detach()).copy_(self.weight(name))


def wide(weight: Tensor) -> torch.dtype:
    """What is added to a weight is reckoned in fp32 at the least."""
    return torch.promote_types(weight.dtype, torch.float32)
