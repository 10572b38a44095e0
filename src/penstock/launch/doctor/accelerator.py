"""Checks of one accelerator: products whose answer is known exactly, and memory that keeps bits."""

import time
from functools import partial
from typing import Any

import torch

from penstock.guard.detect.failpoints import Failpoint, Failpoints
from penstock.home import home

# Small integers: every product and every sum below 2^24 is exact in fp32, in any order.
SIDE = {"cpu": 384, "cuda": 2048}
LARGEST = 3
MATMUL_S = {"cpu": 0.5, "cuda": 2.0}
MEMORY_BYTES = {"cpu": 64 << 20, "cuda": 16 << 30}
MEMORY_SHARE = 0.5  # of what is free
MEMORY_S = 3.0
PATTERNS = (0x5555555555555555, -0x5555555555555556, 0, -1)
_PART_WORDS = 1 << 24
Facts = dict[str, Any]


def traps(rank: int) -> Failpoints:
    """Return the armed failpoints of the doctor: tests plant a wrong answer by one."""
    return Failpoints(home() / "doctor" / "traps", rank, 0)


def known_answer(device: torch.device, rank: int) -> Facts:
    """Multiply until the time is over; return how often the answer was wrong, and the speed."""
    side = SIDE[device.type]
    left, right = _integers(side, 1), _integers(side, 2)
    # In float64 on the CPU, by sums: not by the kernels that are being checked.
    expected = _product_by_sums(left, right)
    wrong: dict[str, int] = {}
    best_s = float("inf")
    failpoints = traps(rank)
    for precision, dtype in _precisions(device):
        a, b = left.to(device, dtype), right.to(device, dtype)
        right_answer = expected.to(device).to(dtype)
        until, tries = time.monotonic() + MATMUL_S[device.type], 0
        while tries < 2 or time.monotonic() < until:
            _wait(device)
            began = time.perf_counter()
            found = a @ b
            _wait(device)
            best_s = min(best_s, time.perf_counter() - began)
            tries += 1
            failpoints.handlers["flip"] = partial(_flip, found)
            failpoints.trigger("matmul", tries)
            if not torch.equal(found, right_answer):
                wrong[precision] = int((found != right_answer).sum())
                break
    return {"wrong": wrong, "side": side, "flops": 2.0 * side**3 / best_s}


def _precisions(device: torch.device) -> list[tuple[str, torch.dtype]]:
    if device.type != "cuda":
        return [("fp32", torch.float32)]
    torch.backends.cuda.matmul.allow_tf32 = False
    # Partial sums in bf16 would round: the exact answer is asked for.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return [("fp32", torch.float32), ("bf16", torch.bfloat16)]


def _integers(side: int, seed: int) -> torch.Tensor:
    """Return integers of -3 … 3 that depend on the place alone."""
    row, column = torch.arange(side).view(-1, 1), torch.arange(side).view(1, -1)
    mixed = (row * 7919 + column * 104729 + seed * 1299709) * 2654435761 % 2**32
    return (mixed >> 16) % (2 * LARGEST + 1) - LARGEST


def _product_by_sums(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the product in float64, which holds every partial sum exactly."""
    return left.double() @ right.double()


def _flip(tensor: torch.Tensor, trap: Failpoint) -> None:
    """Flip one bit of the answer, as a broken accelerator does."""
    whole = tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)
    whole[0, 0] ^= 1 << 10


def memory_pattern(device: torch.device) -> Facts:
    """Write patterns to free memory and read them back; return how many words were wrong."""
    size = MEMORY_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, int(torch.cuda.mem_get_info(device)[0] * MEMORY_SHARE))
    words = torch.empty(size // 8, dtype=torch.int64, device=device)
    parts = words.split(_PART_WORDS)
    addresses = torch.arange(len(parts[0]), device=device)
    wrong, until = 0, time.monotonic() + MEMORY_S
    for pattern in PATTERNS:
        # Every word another, and every part: a line that leads to a wrong address shows too.
        for number, part in enumerate(parts):
            torch.bitwise_xor(addresses[: len(part)] + number * _PART_WORDS, pattern, out=part)
        for number, part in enumerate(parts):
            expected = addresses[: len(part)] + number * _PART_WORDS
            wrong += int((part ^ pattern != expected).sum())
        if time.monotonic() > until:
            break
    return {"wrong": wrong, "bytes": size}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
