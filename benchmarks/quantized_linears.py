"""fp8 and NF4 linear layers: ours beside torchao's, on one GPU.

    python benchmarks/quantized_linears.py [--json FILE]

The work is the feed-forward block of an 8B model (4096 × 14336, gated), two blocks, on 16,384
tokens in bf16: forward and backward, compiled. fp8 trains all weights with one scale per tensor on
both sides. NF4 holds frozen weights, so that only the gradient of the input is computed, as in a
QLoRA step. Medians of 20 rounds by the device's clock, the candidates in turns.
"""

import argparse
import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.model.fp8 import convert_linears_to_fp8
from penstock.model.nf4 import Nf4Linear, dequantize, quantize

HIDDEN, FFN, BLOCKS, TOKENS, ROUNDS = 4096, 14336, 2, 16_384, 20


class Block(nn.Module):
    """A gated feed-forward block with a residual."""

    def __init__(self, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.gate, self.up = linear(HIDDEN, FFN), linear(HIDDEN, FFN)
        self.down = linear(FFN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def plain(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)


def frozen(inputs: int, outputs: int) -> nn.Module:
    return plain(inputs, outputs).requires_grad_(False)


def our_nf4(inputs: int, outputs: int) -> nn.Module:
    made = Nf4Linear(inputs, outputs, bias=False).cuda()
    rows = quantize(plain(inputs, outputs).weight)
    for held in (*made.parameters(), *made.buffers()):
        if held.shape == rows.shape:
            held.data.copy_(rows)
    return made


class TorchaoNf4(nn.Module):
    """A frozen matrix in torchao's NF4, as its QLoRA recipes use it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

        weight = to_nf4(plain(inputs, outputs).weight.detach(), block_size=64)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4

        return linear_nf4(x, self.weight)


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    linear = {
        "bf16 frozen": frozen,
        "NF4 ours": our_nf4,
        "NF4 torchao": TorchaoNf4,
    }.get(name, plain)
    model = nn.Sequential(*(Block(linear) for _ in range(BLOCKS)))
    if name == "fp8 ours":
        convert_linears_to_fp8(model)
    if name == "fp8 torchao":
        from torchao.float8 import convert_to_float8_training

        model = convert_to_float8_training(model)
    return model


def measure(name: str, x: Tensor) -> tuple[Callable[[], float], float]:
    """Return a function that times one round, and the bytes of the weights and what they need."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = model_of(name)
    held = torch.cuda.memory_allocated() - before
    compiled = torch.compile(model)

    def one_round() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        compiled(x).sum().backward()
        end.record()
        torch.cuda.synchronize()
        for parameter in model.parameters():
            parameter.grad = None
        x.grad = None
        return begin.elapsed_time(end)

    for _ in range(4):
        one_round()
    return one_round, held


def nf4_errors() -> dict[str, float]:
    """Return the mean absolute error of normal weights, over their mean magnitude."""
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    torch.manual_seed(1)
    weight = torch.randn(FFN, HIDDEN, device="cuda", dtype=torch.bfloat16) * 0.02
    theirs = to_nf4(weight, block_size=64).get_original_weight()
    ours = dequantize(quantize(weight), HIDDEN, torch.bfloat16)
    size = weight.float().abs().mean()
    return {
        name: float((made.float() - weight.float()).abs().mean() / size)
        for name, made in (("NF4 ours", ours), ("NF4 torchao", theirs))
    }


def main() -> None:
    parse = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parse.add_argument("--json", default="")
    target = parse.parse_args().json
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    rows: dict[str, dict[str, float | str]] = {}
    rounds = {}
    for name in ("bf16", "fp8 ours", "fp8 torchao", "bf16 frozen", "NF4 ours", "NF4 torchao"):
        try:
            rounds[name], held = measure(name, x)
            rows[name] = {"weights_gb": held / 1e9}
        except Exception as error:  # a peer that does not run here is a row of the table
            rows[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(ROUNDS):
        for name, one_round in rounds.items():
            times[name].append(one_round())
    for name, taken in times.items():
        rows[name]["ms"] = statistics.median(taken)
    try:
        for name, error in nf4_errors().items():
            rows[name]["relative_error"] = error
    except Exception as error:
        rows["NF4 torchao"]["error_of_errors"] = str(error)[:200]
    for name, row in rows.items():
        print(f"{name:12s}", "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if target:
        with open(target, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
