"""What a power limit costs in time and saves in energy on one GPU, load by load.

`python benchmarks/power_caps.py [--caps 700,600,500] [--seconds 6] [--json FILE]`, as root (the
limit is set with `nvidia-smi -pl` and put back at the end), some four minutes on one GPU; needs
torch alone. Each line is a load under a limit: mean power by the energy counter, the median clock,
and the rate as a share of the rate under the highest limit. `plan/power/caps.py` has the model that
these figures are held against.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WARM_UP_S = 1.5  # under a new limit, before it counts
HIDDEN, HEADS, FFN, LAYERS, SEQUENCE, SEQUENCES = 4096, 32, 14336, 6, 4096, 2
Load = tuple[Callable[[], None], float, str]  # one go, what it does in one, and the unit


class Meter:
    """The energy counter and the clock of the first GPU, by the driver's own library."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        assert self.nvml.nvmlInit_v2() == 0
        assert self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) == 0

    def joules(self) -> float:
        found = ctypes.c_ulonglong()
        code = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(found))
        assert code == 0, f"NVML says {code}: this GPU has no energy counter"
        return found.value / 1e3

    def clock_mhz(self) -> float:
        found = ctypes.c_uint()
        assert self.nvml.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(found)) == 0
        return float(found.value)


class Block(nn.Module):
    """A decoder layer of an 8B model."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x_bsd: Tensor) -> Tensor:
        b, s, d = x_bsd.shape
        heads = self.qkv(self.norms[0](x_bsd)).view(b, s, 3 * HEADS, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x_bsd = x_bsd + self.out(mixed.transpose(1, 2).reshape(b, s, d))
        gate, up = self.up(self.norms[1](x_bsd)).chunk(2, dim=-1)
        return x_bsd + self.down(F.silu(gate) * up)


def training() -> Load:
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    compiled = torch.compile(model)
    x_bsd = torch.randn(SEQUENCES, SEQUENCE, HIDDEN, device="cuda", dtype=torch.bfloat16)

    def go() -> None:
        compiled(x_bsd).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    weights = sum(p.numel() for p in model.parameters())
    flops = (6 * weights + 6 * LAYERS * SEQUENCE * HIDDEN) * SEQUENCE * SEQUENCES
    return go, flops / 1e12, "TFLOP/s"


def product(side: int = 8192, dtype: torch.dtype = torch.bfloat16) -> Load:
    one, other = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out), 2 * side**3 / 1e12, "TFLOP/s"


def memory() -> Load:
    one, other = (torch.ones(2 << 30, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return lambda: torch.add(one, other, out=one), 3 * 2.0 * one.numel() / 1e12, "TB/s"


def idle() -> Load:
    return lambda: time.sleep(0.05), 0.0, ""


LOADS = {"training": training, "matmul": product, "memory": memory, "idle": idle}


def measure(load: Load, seconds: float, meter: Meter) -> dict[str, float]:
    go, each, _ = load
    clocks: list[float] = []
    began, ends, times, before = 0.0, time.perf_counter() + WARM_UP_S, 0, 0.0
    counting = False
    while True:
        go()
        times += 1
        if times % 4:  # the queue of the device is not to run ahead of the clock
            continue
        torch.cuda.synchronize()
        now = time.perf_counter()
        clocks.append(meter.clock_mhz())
        if now < ends:
            continue
        if counting:
            joules = meter.joules() - before
            spent = now - began
            return {
                "watts": joules / spent,
                "rate": each * times / spent,
                "clock_mhz": statistics.median(clocks),
            }
        counting, times, clocks = True, 0, []
        began, ends, before = now, now + seconds, meter.joules()


@contextmanager
def limits(caps: list[int]) -> Iterator[None]:
    """Put the limit back at the end, whatever happens."""
    asked = "nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits -i 0"
    before = float(subprocess.run(asked.split(), check=True, capture_output=True, text=True).stdout)
    try:
        set_limit(caps[0])
        yield
    finally:
        set_limit(before)


def set_limit(watts: float) -> None:
    done = subprocess.run(
        ["nvidia-smi", "-i", "0", "-pl", f"{watts:g}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the power limit may not be set to {watts:g} W here: {done.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--caps", default="700,650,600,550,500,450,400,350,300,250,200")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    caps = sorted((int(cap) for cap in given.caps.split(",")), reverse=True)
    meter, points = Meter(), []
    name = torch.cuda.get_device_name()
    with limits(caps):
        for kind, make in LOADS.items():
            load = make()
            best = 0.0
            for cap in caps if kind != "idle" else caps[:1]:
                set_limit(cap)
                found = measure(load, given.seconds, meter)
                best = best or found["rate"] or 1.0
                points.append({"load": kind, "limit_w": cap, **found})
                print(
                    f"{kind:9} limit {cap:4} W: {found['watts']:6.1f} W, "
                    f"{found['clock_mhz']:5.0f} MHz, {found['rate']:7.2f} {load[2]}, "
                    f"speed {found['rate'] / best:.3f}",
                    flush=True,
                )
            del load
            torch.cuda.empty_cache()
    if given.json:
        given.json.write_text(json.dumps({"device": name, "points": points}, indent=1))


if __name__ == "__main__":
    main()
