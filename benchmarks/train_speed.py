"""Training speed on one GPU: Penstock beside torchtitan, transformers, PEFT and nanoGPT.

`make bench-train` and `make bench-adapt` run every case in a process of its own, on the same shapes
and random tokens, and print a table: the median of 20 steps by the device's clock, after three of
warm-up. Ours goes through the product's own code (`train/engine.py`), the peers through
`train_peers.py`. A case is WHO/WORK or WHO/WORK/OPTION+OPTION.

    python benchmarks/train_speed.py --peers DIR [--only 1.5B] [--json FILE] [--trace FILE]
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape

if TYPE_CHECKING:
    from penstock.plan.job.layout import Layout
    from penstock.run.schema.run import Run

PEAK_FLOPS = 989e12  # dense bf16 of an H100 or H200 by its datasheet
FORMULA = (
    "MFU = (6 × parameters without the input embedding + 12 × layers × hidden × sequence) "
    "× tokens/s / 989e12"
)
WARM_UP, STEPS = 3, 20
REPEAT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # what cuBLAS needs to repeat itself


@dataclass(frozen=True)
class Work:
    shape: ModelShape
    sequence: int
    batch: int
    settings: tuple[str, ...] = ()
    adapter: str = ""  # "lora" or "qlora", on all linears of the layers
    narrow: bool = False  # peers keep weights and moments in bf16, as `settings` say of ours


BF16_STATES = ("train.weights=bf16", "train.states=bf16")
LLAMA_8B = ModelShape(32, 4096, 32, 8, 14336, 128_256)
LLAMA_70B = ModelShape(80, 8192, 64, 8, 28672, 128_256)
OLMOE = ModelShape(16, 2048, 16, 16, 1024, 50_304, experts=64, experts_active=8, expert_ffn=1024)

WORKS = {
    "1.5B": Work(ModelShape(16, 2048, 32, 8, 8192, 128_256), 4096, 8),
    # A shape that none of the planner's constants has seen: heads of 128, another depth.
    "0.7B": Work(ModelShape(24, 1536, 12, 4, 4096, 50_304), 2048, 16),
    "160M": Work(ModelShape(12, 768, 12, 12, 2048, 50_304), 1024, 64),
    "8B": Work(LLAMA_8B, 4096, 4, BF16_STATES, narrow=True),
    "OLMoE": Work(OLMOE, 4096, 8, BF16_STATES, narrow=True),
    "1B-131k": Work(ModelShape(16, 2048, 32, 8, 8192, 128_256, tied=True), 131_072, 1),
    "8B-lora": Work(LLAMA_8B, 4096, 8, adapter="lora", narrow=True),
    "8B-qlora": Work(LLAMA_8B, 4096, 8, adapter="qlora", narrow=True),
    "70B-qlora": Work(LLAMA_70B, 4096, 2, adapter="qlora", narrow=True),
}
OPTIONS = {
    "": (),
    "fp8": ("train.precision=fp8",),
    "deterministic": ("train.deterministic=true",),
    "selective": ("layout.recompute=selective",),
    "full": ("layout.recompute=full",),
    "eager": ("train.compile=off",),
    **{f"micro{size}": () for size in (1, 2, 4, 8)},  # sequences of a microbatch
}
CASES = [
    "penstock/1.5B",
    "torchtitan/1.5B",
    "transformers/1.5B",
    "penstock/160M",
    "torchtitan/160M",
    "transformers/160M",
    "nanoGPT/160M",
    "penstock/0.7B",
    "penstock/8B",
    "penstock/1.5B/fp8",
    "penstock/8B/fp8",
    "penstock/1.5B/deterministic",
    "penstock/1.5B/selective",
    "penstock/1.5B/full",
    "penstock/OLMoE",
    "torchtitan/OLMoE",
    "transformers/OLMoE",
    "penstock/1B-131k/selective",
    "liger/1B-131k/full",
]
ADAPT_CASES = [
    "penstock/8B-lora/micro4",
    "penstock/8B-lora/micro8",
    *(f"peft/8B-lora/micro{size}{how}" for how in ("", "+eager") for size in (2, 4)),
    "penstock/8B-qlora/micro4",
    "penstock/70B-qlora/micro1+full",
]


@dataclass(frozen=True)
class Result:
    case: str
    step_ms: float = 0.0
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    peak_gib: float = 0.0
    losses: tuple[float, ...] = ()  # first and last
    error: str = ""


def run_of(work: Work, options: Sequence[str]) -> tuple["Run", "Layout"]:
    """The run file of a case, and its layout on one device."""
    from penstock.plan.job.layout import Layout
    from penstock.run.load import load

    path = Path("/tmp/penstock-bench.toml")
    path.write_text('name = "bench"\n')
    run = load(
        str(path),
        [
            *(adapter_fields(work) if work.adapter else model_fields(work)),
            f"data.sequence={work.sequence}",
            f"train.batch_tokens={work.batch * work.sequence}",
            "train.learning_rate=3e-4",
            "train.precision=bf16",
            *work.settings,
            *(field for option in options for field in OPTIONS[option]),
        ],
    )
    again = (run.layout and run.layout.recompute) or "none"
    return run, Layout(microbatch=microbatch(work, options), recompute=again)


def ours(work: Work, options: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """A step of the product: its layout, runner, gradients, vote and optimizer."""
    from penstock.meter.clock import StepClock
    from penstock.train.engine import build_engine
    from penstock.train.parallel.microbatch import Microbatch
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    run, layout = run_of(work, options)
    size = layout.microbatch
    if run.train.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "PENSTOCK_ATTEMPT": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    world = join(layout, "cuda", 60.0)
    stepper = build_engine(run, layout, work.shape.vocab, world).stepper

    def step(tokens: Tensor) -> Tensor:
        batch = [Microbatch(part[:, :-1], part[:, 1:], 1.0) for part in tokens.split(size)]
        counted = work.batch * work.sequence
        vote = unguarded_step(stepper, batch, counted, 3e-4, StepClock(True))
        return torch.tensor(vote.loss)

    step.store = store  # type: ignore[attr-defined]  # lives as long as the step
    return step


def microbatch(work: Work, options: Sequence[str]) -> int:
    """The sequences of a microbatch: as an option says, else all of the batch."""
    sizes = [int(o.removeprefix("micro")) for o in options if o.startswith("micro")]
    return sizes[0] if sizes else work.batch


def model_fields(work: Work) -> list[str]:
    shape = work.shape
    names = OF_THE_MODEL + (OF_EXPERTS if shape.moe else ())
    fields = [f"model.{name}={getattr(shape, name)}" for name in names]
    return [*fields, f"model.tied={str(shape.tied).lower()}", f"model.context={work.sequence}"]


def adapter_fields(work: Work) -> list[str]:
    """An open model of this shape, whose frozen weights are drawn on the device: 16 to 140 GB need
    not be written and read for the time of a step.
    """
    from penstock.catalog.open.models import config_of
    from penstock.model.adapter.lora import A, B, draw_adapters
    from penstock.model.nf4 import quantize
    from penstock.train.parallel import materialize

    folder = Path("/tmp/penstock-bench-model")
    folder.mkdir(exist_ok=True)
    config = config_of(replace(work.shape, context=131_072), "llama")
    (folder / "config.json").write_text(json.dumps(config))

    @torch.no_grad()
    def draw(decoder: nn.Module, weights: object, device: torch.device, seed: int) -> None:
        decoder.to_empty(device=device)
        adapters = {}
        for name, tensor in decoder.named_parameters():
            if name.endswith((A, B)):
                adapters[name] = tensor
            elif tensor.dtype == torch.uint8:
                inputs = decoder.get_submodule(name.rpartition(".")[0]).in_features
                wide = torch.empty(len(tensor), inputs, device=device, dtype=torch.bfloat16)
                tensor.copy_(quantize(wide.normal_(std=0.02)))
            else:
                tensor.fill_(1.0) if tensor.ndim == 1 else tensor.normal_(std=0.02)
        draw_adapters(adapters, device, seed)

    materialize.OpenWeights = lambda folder: folder  # type: ignore[assignment,misc]
    materialize.load_base_and_adapters = draw
    return [f"model.from={folder}", f"model.adapter.kind={work.adapter}"]


OF_THE_MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
OF_EXPERTS = ("experts", "experts_active", "expert_ffn")


def measure(case: str, peers: Path, trace: Path | None, steps: int, warm_up: int) -> Result:
    who, name, *rest = case.split("/")
    options, work = rest[0].split("+") if rest else [], WORKS[name]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if who == "penstock":
        step = ours(work, options)
    else:
        from train_peers import PEERS

        step = PEERS[who](work.shape, work.sequence, peers, **peer_options(work, options))
    draw = torch.Generator("cuda").manual_seed(0)
    sample = (warm_up + steps, work.batch, work.sequence + 1)
    data = torch.randint(work.shape.vocab, sample, generator=draw, device="cuda")
    losses, ends = [], []
    for tokens in data:
        losses.append(step(tokens))
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
    torch.cuda.synchronize()
    timed = ends[warm_up - 1 :]
    step_ms = statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(timed))
    peak_gib = torch.cuda.max_memory_allocated() / 2**30
    if trace:
        trace.write_text(kernels(step, data[:3]))
    rate = work.batch * work.sequence / step_ms * 1e3
    mfu = work.shape.flops_per_token(work.sequence, bool(work.adapter)) * rate / PEAK_FLOPS
    return Result(case, step_ms, rate, mfu, peak_gib, (losses[0].item(), losses[-1].item()))


def peer_options(work: Work, options: Sequence[str]) -> dict[str, Any]:
    """What a peer is told beside the shape, where it is not the default."""
    told: dict[str, Any] = {}
    if work.narrow:
        told["narrow"] = True
    if any(option.startswith("micro") for option in options):
        told["micro"] = microbatch(work, options)
    if "eager" in options:
        told["compiled"] = False
    if "full" in options:
        told["recompute"] = True
    return told


def kernels(step: Callable[[Tensor], Tensor], data: Tensor) -> str:
    """Where the time of a step goes: kernels by their sum, and the time between them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for tokens in data:
            step(tokens)
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    steps = len(data)
    by_name: dict[str, list[float]] = {}
    for start, end, name in spans:
        by_name.setdefault(name, []).append(end - start)
    busy = sum(map(sum, by_name.values()))
    whole = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    lines = [f"{steps} steps: {whole / 1e3:.1f} ms, kernels {busy / 1e3:.1f} ms; per step:"]
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:40]:
        each = f"{sum(times) / steps / 1e3:9.2f} ms {len(times) // steps:5d} ×"
        lines.append(f"{each} {sum(times) / len(times):9.1f} us  {name[:110]}")
    lines.append("the device waits, per step, by the kernel that comes next:")
    waits: dict[str, float] = {}
    ended = spans[0][0]
    for start, end, name in sorted(spans):
        waits[name] = waits.get(name, 0.0) + max(0.0, start - ended)
        ended = max(ended, end)
    for name, wait in sorted(waits.items(), key=lambda item: -item[1])[:10]:
        lines.append(
            f"{wait / steps / 1e3:9.2f} ms {len(by_name[name]) // steps:5d} × {name[:110]}"
        )
    return "\n".join(lines) + "\n"


def table(results: Sequence[Result]) -> str:
    lines = [FORMULA, f"{'case':32}{'step ms':>9}{'tokens/s':>11}{'MFU':>8}{'peak GiB':>10}"]
    for r in results:
        row = f"{r.step_ms:9.1f}{r.tokens_per_s:11,.0f}{r.mfu:8.1%}{r.peak_gib:10.1f}"
        lines.append(f"{r.case:32}{r.error or row}")
    return "\n".join(lines)


def apart(case: str, options: argparse.Namespace) -> Result:
    """The case in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--peers", str(options.peers)]
    command += ["--steps", str(options.steps), "--warm-up", str(options.warm_up)]
    if options.trace and case == options.cases[0]:
        command += ["--trace", str(options.trace)]
    environment = os.environ | (REPEAT if "deterministic" in case else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        print(done.stderr[-2000:], file=sys.stderr)
        return Result(case, error=(done.stderr.strip().splitlines() or ["no word"])[-1][:100])
    return Result(**json.loads(last[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(".peers/trainers"))
    parser.add_argument("--only", default="", help="cases that have this in their name")
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument(
        "--adapt", dest="cases", action="store_const", const=ADAPT_CASES, help="cases of adapters"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="that are timed")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="steps before those")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", type=Path, help="kernels of the first case, by their time")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        found = measure(options.case, options.peers, options.trace, options.steps, options.warm_up)
        print(json.dumps(asdict(found)), flush=True)
        os._exit(0)  # past the process group, which nobody waits for
    results: list[Result] = []
    for case in options.cases:
        if options.only in case:
            results.append(apart(case, options))
            print(table(results[-1:]).splitlines()[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n{table(results)}")


if __name__ == "__main__":
    main()
