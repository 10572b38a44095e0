"""LoRA: two thin trained matrices beside a frozen one (Hu et al. 2021), and QLoRA.

    out = base(x) + alpha / rank × b(a(x))        a [rank, in], b [out, rank]

The frozen weight keeps its canonical name (`layers.3.attention.q.weight`), the adapter stands
beside it (`….q.adapter_a`, `….q.adapter_b`). `a` is drawn, `b` begins at zero: at first the model
is what it was. Everything else is frozen. With `kind = "qlora"` the frozen matrices of the layers
are in 4 bit (`model/nf4.py`).

Routed experts, which are stacks and no linears, and routers get no adapter: in a mixture of experts
`ffn` is the dense layers and the shared experts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.open.generic import ROUTERS, is_target
from penstock.errors import PenstockError
from penstock.model.fp8 import Fp8Linear
from penstock.model.initialize import copy_to_shard, named_generator
from penstock.model.nf4 import Nf4Linear, quantize
from penstock.model.open.weights import OpenWeights, copy_open_tensors
from penstock.run.schema.adapter import AdapterSection

A, B = "adapter_a", "adapter_b"
_MATRIX = re.compile(r"layers\.\d+\.(?:attention|ffn(?:\.shared)?)\.(\w+)")


class LoraMixin(nn.Module):
    """The adapter of a frozen linear layer; the next class in the MRO computes the frozen part."""

    in_features: int
    out_features: int
    adapter_off = False  # the layer is the frozen one alone: the model that the run began with

    def add_adapter(self, section: AdapterSection) -> None:
        """Create the two adapter matrices."""
        self.scale, self.dropout = section.alpha / section.rank, section.dropout
        self.adapter_a = nn.Parameter(torch.empty(section.rank, self.in_features))
        self.adapter_b = nn.Parameter(torch.empty(self.out_features, section.rank))

    def forward(self, x: Tensor) -> Tensor:
        if self.adapter_off:
            return super().forward(x)
        kept = F.dropout(x, self.dropout, self.training) if self.dropout else x
        thin = F.linear(F.linear(kept, self.adapter_a), self.adapter_b)
        return super().forward(x) + thin * self.scale


class LoraLinear(LoraMixin, nn.Linear):
    """A frozen `nn.Linear` with a LoRA adapter."""


class Fp8LoraLinear(LoraMixin, Fp8Linear):
    """A frozen linear layer that multiplies in fp8, with a LoRA adapter in 16 bits."""


# What `train.precision = "fp8"` makes of the linear layers of a decoder.
FP8_KINDS: Mapping[type[nn.Linear], type[Fp8Linear]] = {
    nn.Linear: Fp8Linear,
    LoraLinear: Fp8LoraLinear,
}


class QloraLinear(LoraMixin, Nf4Linear):
    """A frozen 4-bit linear with a LoRA adapter."""


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen weights alone."""
    adapted = [module for module in model.modules() if isinstance(module, LoraMixin)]
    for module in adapted:
        module.adapter_off = True
    try:
        yield
    finally:
        for module in adapted:
            module.adapter_off = False


def add_adapters(decoder: nn.Module, section: AdapterSection) -> None:
    """Freeze the decoder and add adapters to it, in place.

    It may be on the meta device and be filled later, or have weights, which stay (in 4 bit:
    quantised later).
    """
    decoder.requires_grad_(False)
    for name, module in list(decoder.named_modules()):
        found = _MATRIX.fullmatch(name)
        if not found or not isinstance(module, nn.Linear):
            continue
        chosen, quantised = found[1] in section.parts, section.kind == "qlora"
        if chosen or quantised:
            decoder.set_submodule(name, _adapted_linear(module, section, chosen, quantised))


def add_module_adapters(
    model: nn.Module, layers: Iterable[nn.Module], section: AdapterSection
) -> None:
    """Freeze a module of transformers and add adapters to the linears of its layers, in place."""
    model.requires_grad_(False)
    inside = {id(part) for layer in layers for part in layer.modules()}
    quantised, some = section.kind == "qlora", False
    for name, module in list(model.named_modules()):
        if id(module) not in inside or type(module) is not nn.Linear:
            continue
        if name.rpartition(".")[2] in ROUTERS:
            continue
        chosen = is_target(name, section.targets)
        some = some or chosen
        if chosen or quantised:
            model.set_submodule(name, _adapted_linear(module, section, chosen, quantised))
    if not some:
        raise PenstockError(
            f"model.adapter.targets = {list(section.targets)}: the layers of this model have no "
            "nn.Linear of these names (transformers builds them otherwise); train all weights: "
            "remove [model.adapter]"
        )


def _adapted_linear(
    linear: nn.Linear, section: AdapterSection, chosen: bool, quantised: bool
) -> nn.Module:
    inputs, outputs, bias = linear.in_features, linear.out_features, linear.bias is not None
    kept = linear.weight
    with kept.device:
        if quantised:
            made: nn.Module = (QloraLinear if chosen else Nf4Linear)(inputs, outputs, bias)
        else:
            made = LoraLinear(inputs, outputs, bias, device="meta")
            made.weight = kept
        made.bias = linear.bias
        if isinstance(made, LoraMixin):
            made.add_adapter(section)
            for thin in (made.adapter_a, made.adapter_b):
                thin.data = thin.data.to(kept.dtype)
    return made


def cast_frozen(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Cast frozen weights to the type of the matmuls: they have no master and need none."""
    for param in decoder.parameters():
        if not param.requires_grad and param.is_floating_point():
            param.data = param.data.to(dtype)


@torch.no_grad()
def load_base_and_adapters(
    decoder: nn.Module, weights: OpenWeights, device: torch.device, seed: int
) -> None:
    """Load the open model's weights, quantised where the decoder asks for it, and draw new
    adapters.

    `a` is uniform within 1 / sqrt(inputs), which equals PEFT's Kaiming rule. Each is drawn from a
    generator of its own name, so that it is the same in every layout.
    """
    decoder.to_empty(device=device)
    named = {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}
    adapters = {name: named.pop(name) for name in list(named) if name.endswith((A, B))}
    narrow = {name: t for name, t in named.items() if t.dtype == torch.uint8}
    copy_open_tensors({name: t for name, t in named.items() if name not in narrow}, weights, device)
    for name, tensor in narrow.items():
        copy_to_shard(tensor, quantize(weights.read(name).to(device)))
    draw_adapters(adapters, device, seed)


@torch.no_grad()
def draw_adapters(adapters: Mapping[str, Tensor], device: torch.device, seed: int) -> None:
    """Give adapters their first values: `a` uniform within 1 / sqrt(inputs), `b` zero."""
    for name, tensor in adapters.items():
        bound = tensor.shape[1] ** -0.5 if name.endswith(A) else 0.0
        drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        copy_to_shard(
            tensor, drawn.uniform_(-bound, bound, generator=named_generator(name, seed, device))
        )
