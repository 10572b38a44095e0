"""What metering costs a step: clocks, journal and traces, beside the same engine without them.

`make bench-meter` or `python benchmarks/metering.py [--json FILE]`; on a GPU if there is one (the
160M shape of `overhead.py`, about a minute), else on one CPU core (the model of the default run).
Blocks of steps take turns, metered and bare, in one process on the same weights and batch; their
medians are compared, and how far two halves of the bare blocks are apart is the noise. On a CPU the
process's own CPU time is taken: others that share the cores would drown what is looked for. A trace
is rare: what one costs, in its step and after it, is spread over the 500 steps between two of them.
Exit code 1 when both together are beyond the limit (CPU 1 %, GPU 0.5 %) by more than the noise.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import StepClock, now
from penstock.plan.job.layout import Layout
from penstock.run.load import load
from penstock.run.schema.quantity import Every
from penstock.train.engine import build_engine
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.step import unguarded_step
from penstock.train.tracer import Tracer
from penstock.train.world.world import World, join

LIMITS = {"cpu": 0.01, "cuda": 0.005}
BLOCKS = {"cpu": (1, 80), "cuda": (5, 16)}  # steps in a block, blocks of each kind
WARM_UP, TRACES = 5, 5
EVERY = 500  # steps between two traces by default
MODELS = {  # fields of the run, sequences in the batch
    "cpu": (["model.preset=llama-3m", "data.sequence=256"], 4),
    "cuda": (["model.preset=llama-160m", "data.sequence=1024"], 64),
}
Step = Callable[[StepClock], None]


class Bare(StepClock):
    """Measures nothing."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        yield


SETTLED = ("train.learning_rate=3e-4", "train.precision=bf16")  # no launch chooses here


def engine(device: str) -> tuple[Step, World, dist.TCPStore]:
    """A step of the product on random tokens; the store has to outlive it."""
    fields, batch = MODELS[device]
    path = Path(tempfile.mkdtemp()) / "bench.toml"
    path.write_text('name = "bench"\n')
    run = load(str(path), [*fields, *SETTLED])
    assert run.model.preset
    tokens = batch * run.data.sequence
    run = load(str(path), [*fields, *SETTLED, f"train.batch_tokens={tokens}"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "PENSTOCK_ATTEMPT": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    layout = Layout(microbatch=batch)
    world = join(layout, device, 60.0)
    vocab = 4096 if device == "cpu" else 50_304
    stepper = build_engine(run, layout, vocab, world).stepper
    sample = torch.randint(vocab, (batch, run.data.sequence + 1)).to(world.device)
    micros = [Microbatch(sample[:, :-1], sample[:, 1:], 1.0)]

    def step(clock: StepClock) -> None:
        unguarded_step(stepper, micros, tokens, 3e-4, clock)

    return step, world, store


def nothing(clock: StepClock) -> None:
    """A step with its parts and no work in them."""
    for name in ("compute", "exchange", "compute", "bubble", "exchange", "held", "compute"):
        with clock.part(name):
            pass


class Metered:
    """What the loop does around a step to meter it."""

    def __init__(self, step: Step, world: World, folder: Path) -> None:
        self.step, self.clock = step, StepClock(world.cuda)
        self.journal = Journal(folder / "journal", 0, clock=now)
        self.tracer = Tracer(folder / "traces", self.journal, world, Every(steps=EVERY))
        self.tracer.begin_warm_up(EVERY)
        self.tracer.wait_warm()
        self.numbers = itertools.count(1)

    def __call__(self, traced: bool = False) -> None:
        number = next(self.numbers)
        self.tracer.requested = traced
        with self.tracer.trace_if_requested(number, self.clock):
            self.clock.begin()
            with self.clock.part("fetch"):
                pass
            self.step(self.clock)
            self.journal.curve(number, 1.0, 1.0, 3e-4, float(number))
            self.journal.step(number, **self.clock.settle())


def timed(steps: Callable[[], None], count: int, cuda: bool) -> float:
    """Seconds of a step, of so many."""
    if cuda:
        torch.cuda.synchronize()
    clock = time.perf_counter if cuda else time.process_time
    began = clock()
    for _ in range(count):
        steps()
    if cuda:
        torch.cuda.synchronize()
    return (clock() - began) / count


def measure(device: str, folder: Path) -> dict[str, float]:
    cuda = device == "cuda"
    step, world, store = engine(device)
    metered, bare = Metered(step, world, folder), Bare(False)
    timed(lambda: step(bare), WARM_UP, cuda)
    metered()
    metered(traced=True)  # the first trace of a process is no measure
    off: list[float] = []
    on: list[float] = []
    size, blocks = BLOCKS[device]
    kinds: list[tuple[list[float], Callable[[], None]]] = [(off, lambda: step(bare)), (on, metered)]
    for _ in range(blocks):
        for times, one in kinds:
            times.append(timed(one, size, cuda))
        kinds.reverse()  # who comes second meets what the first left in caches
    traces = [timed(lambda: metered(traced=True), 1, cuda) for _ in range(TRACES)]
    metered.tracer.close()
    calls = Metered(nothing, world, folder / "calls")
    calls_s = timed(calls, 1000, cuda)  # the calls alone, of a step that does nothing
    bare_s, metered_s = statistics.median(off), statistics.median(on)
    halves = [statistics.median(off[half::2]) for half in (0, 1)]
    told = read_events(folder / "journal" / "a0000-r00000.events")[-1].payload["split"]
    assert isinstance(told, dict)
    inside = {part: s for part, s in told.items() if part != "collectives"}
    largest = max(file.stat().st_size for file in (folder / "traces").iterdir())
    del store
    return {
        "bare_ms": bare_s * 1e3,
        "metered_ms": metered_s * 1e3,
        "calls_ms": calls_s * 1e3,
        "trace_ms": (statistics.median(traces) - bare_s) * 1e3,
        "trace_bytes": largest,
        "trace_compute": inside["compute"] / sum(inside.values()),
        "steps": metered_s / bare_s - 1,
        "traces": (statistics.median(traces) - bare_s) / (EVERY * bare_s),
        "noise": abs(halves[0] - halves[1]) / bare_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(device, Path(folder))
    size, blocks = BLOCKS[device]
    both = found["steps"] + found["traces"]
    limit = LIMITS[device]
    print(f"bare step     {found['bare_ms']:9.3f} ms, median of {blocks} blocks of {size}")
    print(f"metered step  {found['metered_ms']:9.3f} ms: {found['steps']:+.2%}")
    print(f"  its calls   {found['calls_ms']:9.3f} ms: {found['calls_ms'] / found['bare_ms']:.2%}")
    print(f"a trace       {found['trace_ms']:9.3f} ms: {found['traces']:+.3%} over {EVERY} steps")
    print(f"  it saw work {found['trace_compute']:9.1%} of forward, backward and update")
    print(f"  its file    {found['trace_bytes'] / 1e3:9.0f} KB")
    print(f"together      {both:+9.2%}, noise {found['noise']:.2%}, limit {limit:.1%}")
    if given.json:
        given.json.write_text(json.dumps(found | {"together": both, "limit": limit}))
    sys.stdout.flush()
    os._exit(1 if both > limit + found["noise"] else 0)  # past the process group


if __name__ == "__main__":
    main()
