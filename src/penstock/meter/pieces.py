"""The pieces of a training step, each alone: what the probe runs and times.

They repeat the operations of the decoder, of its sharding and of the optimizer, in the layouts in
which a step meets them, because eager torch spends as much time between matmuls as in them.
Shape suffixes: m k n of a product; t tokens, d width, h heads, s sequence, e head width, v vocab.
"""

import mmap
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

Work = Callable[[], object]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHAIN = 4  # pieces in one graph, so that starting the backward pass is paid once as in a model
WIDTH = 512  # of the rows that element-wise pieces work on
HEAD_WIDTH = 64
VOCAB = 4096
TENSORS = 8  # parameters of a layer, about


def product(m: int, k: int, n: int, precision: str, device: torch.device) -> Work:
    """Multiply m × k by k × n, the second operand transposed, as in a linear layer."""
    if precision == "fp8":
        x8_mk, w8_nk = (
            torch.randn(size, device=device).to(torch.float8_e4m3fn) for size in ((m, k), (n, k))
        )
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            x8_mk, w8_nk.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    dtype = DTYPES[precision]
    x_mk = torch.randn(m, k, device=device, dtype=dtype)
    w_nk = torch.randn(n, k, device=device, dtype=dtype)
    return lambda: torch.mm(x_mk, w_nk.t())


def norm(elements: int, precision: str, device: torch.device) -> Work:
    x_td, scale_d = _rows(elements, precision, device), _leaf((WIDTH,), precision, device)

    def work() -> object:
        y_td = x_td
        for _ in range(CHAIN):
            y_td = F.rms_norm(y_td, (WIDTH,), scale_d, 1e-5)
        return torch.autograd.grad(y_td, (x_td, scale_d), _like(y_td))

    return work


def gate(elements: int, precision: str, device: torch.device) -> Work:
    x_td, up_td = (_rows(elements, precision, device) for _ in range(2))

    def work() -> object:
        y_td = x_td
        for _ in range(CHAIN):
            y_td = F.silu(y_td) * up_td
        return torch.autograd.grad(y_td, (x_td,), _like(y_td))

    return work


def rotary(elements: int, precision: str, device: torch.device) -> Work:
    rows = max(1, elements // (4 * HEAD_WIDTH))
    x_the = _leaf((rows, 4, HEAD_WIDTH), precision, device)
    turn = torch.randn(2, rows, 1, HEAD_WIDTH // 2, device=device)

    def work() -> object:
        y_the = x_the
        for _ in range(CHAIN):
            cos, sin = turn.to(y_the.dtype)
            a, b = y_the.chunk(2, dim=-1)
            y_the = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.autograd.grad(y_the, (x_the,), _like(y_the))

    return work


def add(elements: int, precision: str, device: torch.device) -> Work:
    """Add two tensors into a third, as residuals and summed gradients do."""
    a, b = (_rows(elements, precision, device).detach() for _ in range(2))
    return lambda: a + b


def loss(elements: int, precision: str, device: torch.device) -> Work:
    """Compute the cross-entropy over a vocabulary, in fp32 whatever the logits are."""
    rows = max(1, elements // VOCAB)
    logits_tv = _leaf((rows, VOCAB), precision, device)
    targets_t = torch.randint(VOCAB, (rows,), device=device)

    def work() -> object:
        total = F.cross_entropy(logits_tv.float(), targets_t, reduction="sum")
        return torch.autograd.grad(total, (logits_tv,))

    return work


def attention(sequence: int, width: int, heads: int, precision: str, device: torch.device) -> Work:
    """Compute causal attention of `heads` heads, with the transposed views that a layer passes."""
    q, k, v = (_leaf((1, sequence, heads, width), precision, device) for _ in range(3))

    def work() -> object:
        out_bhse = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        out = out_bhse.transpose(1, 2).flatten(2)
        return torch.autograd.grad(out, (q, k, v), _like(out))

    return work


class Unit(nn.Module):
    """A module with the weights of a layer and hardly any computation."""

    def __init__(self, parameters: int, device: torch.device) -> None:
        super().__init__()
        rows = max(1, parameters // (TENSORS * WIDTH))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(rows, WIDTH, device=device)) for _ in range(TENSORS)
        )

    def forward(self, x_d: Tensor) -> Tensor:
        for weight in self.weights:
            x_d = x_d + F.linear(x_d, weight).sum()
        return x_d


def sharded(parameters: int, precision: str, device: torch.device, mesh: DeviceMesh) -> Work:
    """Pass through one unit of FSDP2: gather, cast, copies, and the reduction of its gradient."""
    unit = Unit(parameters, device)
    policy = MixedPrecisionPolicy(DTYPES[precision], torch.float32)
    wrapped = nn.Sequential(unit)
    fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(wrapped, mesh=mesh, mp_policy=policy)
    return _passes(wrapped, precision, device)


def unsharded(parameters: int, precision: str, device: torch.device) -> Work:
    """Make the same pass without FSDP2, to compare `sharded` with."""
    unit = Unit(parameters, device).to(DTYPES[precision])
    return _passes(nn.Sequential(unit), precision, device)


def _passes(module: nn.Module, precision: str, device: torch.device) -> Work:
    x_d = _leaf((1, WIDTH), precision, device)

    def work() -> object:
        module(x_d).sum().backward()
        module.zero_grad()
        return None

    return work


def update(parameters: int, device: torch.device) -> Work:
    """Make the norm, copy and clip of the gradients, then AdamW: a step after its exchange."""
    rows = max(1, parameters // (2 * TENSORS * WIDTH))
    params = [nn.Parameter(torch.zeros(rows, WIDTH, device=device)) for _ in range(2 * TENSORS)]
    grads, summed = ([torch.full_like(p, 1e-3) for p in params] for _ in range(2))
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=True)

    def work() -> object:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        squares = torch.stack(torch._foreach_norm(summed)).double().square().sum()
        torch._foreach_copy_(grads, summed)
        torch._foreach_mul_(grads, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return squares

    return work


def all_reduce(size_bytes: int, device: torch.device) -> Work:
    values = torch.zeros(max(1, size_bytes // 4), device=device)
    return lambda: dist.all_reduce(values)


def small_op(device: torch.device) -> Work:
    """Launch the smallest operation: only the cost of the launch."""
    a = torch.zeros(1, device=device)
    return lambda: a + a


def fresh(size_bytes: int) -> Work:
    """Write to memory that the kernel must map first, as after a heap was given back."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, is slower

    def work() -> object:
        with mmap.mmap(-1, size_bytes, flags=private) as pages:
            for start in range(0, size_bytes, mmap.PAGESIZE):
                pages[start] = 1
        return None

    return work


def _rows(elements: int, precision: str, device: torch.device) -> Tensor:
    return _leaf((max(1, elements // WIDTH), WIDTH), precision, device)


def _leaf(size: tuple[int, ...], precision: str, device: torch.device) -> Tensor:
    return torch.randn(size, device=device, dtype=DTYPES[precision]).requires_grad_()


def _like(x: Tensor) -> Tensor:
    return torch.ones_like(x)
