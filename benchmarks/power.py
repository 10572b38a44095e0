"""What one GPU draws at rest, moving memory, multiplying and training; do its meters agree?

`python benchmarks/power.py [--seconds 15] [--json FILE]`, a minute on one GPU: four loads, one
after the other. Each point is the mean power by the energy counter, with the clock, the limit and
what it did. Over all of it the integral of the sampled power stands beside the counter, sampled ten
times a second and every two seconds, as a run does where a part has no counter.
"""

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from train_speed import WORKS, ours

from penstock.meter import devices, nvml
from penstock.meter.energy import DeviceReading
from penstock.meter.sampler import EVERY_S

SAMPLE_S = 0.1
WARM_UP_S = 2.0  # of a load, before it counts: the power is a mean of a second
Load = tuple[Callable[[], None], float, str]  # one go, what it does in one, and the unit


@dataclass
class Watcher:
    """Reads the meter ten times a second beside what runs."""

    meter: nvml.Nvml

    def __post_init__(self) -> None:
        self.seen: list[tuple[float, DeviceReading]] = []
        self.spent_s: list[float] = []  # by a reading
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            began = time.perf_counter()
            (reading,) = self.meter.read()
            self.seen.append((time.perf_counter(), reading))
            self.spent_s.append(time.perf_counter() - began)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start: float, end: float) -> list[tuple[float, DeviceReading]]:
        return [(t, reading) for t, reading in self.seen if start <= t <= end]


def at_rest() -> Load:
    return lambda: time.sleep(0.1), 0.0, ""


def memory() -> Load:
    """Adds two tensors that no cache holds."""
    one, other = (torch.ones(2 << 30, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return lambda: torch.add(one, other, out=one), 3 * 2.0 * one.numel() / 1e12, "TB/s"


def product() -> Load:
    side = 8192
    one, other = (torch.randn(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out), 2 * side**3 / 1e12, "TFLOP/s"


def training() -> Load:
    """Steps of the product's engine on random tokens: the 1.5B shape of `train_speed.py`."""
    work = WORKS["1.5B"]
    step = ours(work, "")
    shape = (work.batch, work.sequence + 1)
    tokens = torch.randint(work.shape.vocab, shape, device="cuda")
    flops = work.shape.flops_per_token(work.sequence) * work.batch * work.sequence
    return lambda: step(tokens), flops / 1e12, "TFLOP/s of the model"


LOADS = {"idle": at_rest, "memory": memory, "matmul": product, "training": training}


def measure(load: Load, seconds: float, watcher: Watcher) -> dict[str, object]:
    go, each, unit = load
    for _ in _until(time.perf_counter() + WARM_UP_S):
        go()
    torch.cuda.synchronize()
    began, times = time.perf_counter(), 0
    for _ in _until(began + seconds):
        go()
        times += 1
        if times % 8 == 0:  # the queue of the device is not to run ahead of the clock
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    seen = watcher.between(began, ended)
    first, last = seen[0], seen[-1]
    assert first[1].joules is not None
    assert last[1].joules is not None
    return {
        "watts": (last[1].joules - first[1].joules) / (last[0] - first[0]),
        "sampled_watts": statistics.fmean(r.watts for _, r in seen if r.watts is not None),
        "limit_w": last[1].limit_w,
        "clock_mhz": statistics.median(r.clock_mhz or 0.0 for _, r in seen),
        "temperature_c": last[1].temperature_c,
        "throttled": max(r.throttled for _, r in seen),
        "rate": each * times / (ended - began),
        "unit": unit,
        "began": began,
        "ended": ended,
    }


def _until(end: float) -> "itertools.takewhile[int]":
    return itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count())


def integral(seen: list[tuple[float, DeviceReading]], every_s: float) -> float:
    """Joules by the sampled power, a sample every so often."""
    kept = [seen[0]]
    for t, reading in seen:
        if t - kept[-1][0] >= 0.99 * every_s:
            kept.append((t, reading))
    spans = itertools.pairwise(kept)
    total = sum((b.watts + a.watts) / 2 * (s - t) for (t, a), (s, b) in spans)
    # What is behind the last sample is drawn as the sample says.
    return total + kept[-1][1].watts * (seen[-1][0] - kept[-1][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = devices.find()
    meter = nvml.find(found.uuids[:1])
    if isinstance(meter, str):
        sys.exit(meter)
    torch.set_float32_matmul_precision("high")
    torch.zeros(1, device="cuda")
    watcher = Watcher(meter)
    points: dict[str, dict[str, object]] = {}
    for name, make in LOADS.items():
        load = make()
        points[name] = measure(load, given.seconds, watcher)
        if dist.is_initialized():  # before its store goes with the load
            dist.destroy_process_group()
        del load
        torch.cuda.empty_cache()
        p = points[name]
        print(
            f"{name:9}{p['watts']:7.0f} W of {p['limit_w']:.0f}, "
            f"sampled {p['sampled_watts']:.0f} W, "
            f"{p['clock_mhz']:.0f} MHz, {p['temperature_c']:.0f} °C, {p['rate']:.1f} {p['unit']}",
            flush=True,
        )
    watcher.stop()
    seen = watcher.seen
    counted_j = seen[-1][1].joules - seen[0][1].joules
    fine, coarse = (integral(seen, every) / counted_j - 1 for every in (SAMPLE_S, EVERY_S))
    seconds = seen[-1][0] - seen[0][0]
    each_ms = 1e3 * statistics.median(watcher.spent_s)
    print(
        f"counter   {counted_j:.0f} J in {seconds:.1f} s, {len(seen)} readings of {each_ms:.2f} ms"
    )
    print(
        f"sampled power over it: {fine:+.2%} every {SAMPLE_S:g} s, {coarse:+.2%} every {EVERY_S:g}"
    )
    if given.json:
        out = {"device": found.name, "points": points, "counter_j": counted_j, "seconds": seconds}
        given.json.write_text(
            json.dumps(out | {"fine": fine, "coarse": coarse, "reading_ms": each_ms}, indent=1)
        )


if __name__ == "__main__":
    main()
