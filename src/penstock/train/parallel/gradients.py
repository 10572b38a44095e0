"""The gradients of a step: gathered over microbatches, each laid out as its parameter is."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from penstock.errors import PenstockError
from penstock.train.parallel.parts import local

SHOWN = 6  # parameters that are named when they get no gradient
Grads = dict[str, Tensor]  # local parts, by the name of the parameter


def no_gradient(names: Sequence[str]) -> str:
    """Say that parameters got no gradient, and what to do: a step needs all of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    which = f"{', '.join(names[:SHOWN])}{more}"
    return f"no gradient reached {which}; use it in forward, or set requires_grad=False"


class Gradients:
    """With `wide`, what 16-bit backward passes give is added up in fp32."""

    def __init__(self, params: Mapping[str, nn.Parameter], wide: bool = False) -> None:
        self.params = params
        self._sums: dict[str, Tensor] = {}
        if wide:
            for name, param in params.items():
                if param.element_size() < 4:
                    param.register_post_accumulate_grad_hook(self._adder(name))

    def _adder(self, name: str):
        def add(param: Tensor) -> None:
            grad, param.grad = param.grad, None
            assert grad is not None
            if name in self._sums:
                self._sums[name] += grad
            else:
                self._sums[name] = grad.float()

        return add

    @torch.no_grad()
    def collect(self) -> Grads:
        """All of them. A sum that ranks hold in parts is made whole first."""
        grads = {name: self._sums.get(name, param.grad) for name, param in self.params.items()}
        missing = [name for name, grad in grads.items() if grad is None]
        if missing:
            raise PenstockError(f"model: {no_gradient(missing)}")
        return {name: self._settled(name, grad) for name, grad in grads.items() if grad is not None}

    def _settled(self, name: str, grad: Tensor) -> Tensor:
        param = self.params[name]
        if isinstance(grad, DTensor) and grad.placements != param.placements:
            assert isinstance(param, DTensor)
            grad = grad.redistribute(placements=param.placements)
        return local(grad)

    def clear(self) -> None:
        self._sums = {}
        for param in self.params.values():
            param.grad = None
