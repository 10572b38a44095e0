"""Plans made by hand: a run, a job and the two models of a step, simple enough for paper."""

from dataclasses import replace
from typing import Any

from penstock.catalog.models import preset
from penstock.plan.advice import StepModels
from penstock.plan.assemble import Bands, assemble
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import COMMUNICATE_PARTS, COMPUTE_PARTS, Band, PeakMemory, StepTime
from penstock.plan.plan import Plan
from penstock.run.schema.run import Run

GIB = 2**30
BANDS = Bands(step=Band(0.9, 1.2), memory=Band(0.95, 1.1))


def run(**sections: Any) -> Run:
    table = {
        "name": "made",
        "model": {"preset": "llama-8b"},
        "data": {"sequence": 8192},
        "train": {"tokens": "1B", "batch_tokens": 128 * 8192},
        "cluster": {"use": "H100"},
    }
    return Run.model_validate(table | sections)


def machine(count: int = 8, **changed: Any) -> Machine:
    return replace(of_catalog("H100", count), **changed)


def job(count: int = 8, layout: Layout | None = None, on: Machine | None = None) -> Job:
    lay = layout or Layout(replicate=1, shard=count, microbatch=1)
    return Job(preset("llama-8b"), 8192, 128, lay, on or machine(count))


def step(tokens: int = 128 * 8192, flops: float = 5e16, **parts: float) -> StepTime:
    """A step of these parts; ten seconds of matmuls when none are given."""
    made = parts or {"matmul": 10.0}
    made = {name.replace("_", "-"): seconds for name, seconds in made.items()}
    causes = {
        "compute": sum(made.get(name, 0.0) for name in COMPUTE_PARTS),
        "communicate": sum(made.get(name, 0.0) for name in COMMUNICATE_PARTS),
        "bubble": made.get("bubble", 0.0),
        "peer_wait": made.get("jitter", 0.0),
        "data_wait": made.get("data", 0.0),
    }
    return StepTime(made, causes, sum(made.values()), tokens, flops, ("made by hand",))


def memory(used_gib: float = 60.0, capacity_gib: float = 80.0) -> PeakMemory:
    parts = {"weights": 0.5, "optimizer": 0.25, "activations": 0.25}
    return PeakMemory({n: s * used_gib * GIB for n, s in parts.items()}, 0, capacity_gib * GIB)


def roofline(of: Job) -> StepTime:
    """A model that feels every resource a little: rates, bandwidths, latency, launches, layout."""
    on, lay = of.machine, of.layout
    again = {"none": 0.0, "selective": 0.2, "full": 1.0}[lay.recompute]
    inside, outside = on.tiers[0], on.tiers[-1]
    parts = {
        "matmul": 6e15 / on.matmul_flops["bf16"],
        "elementwise": 5e12 / on.memory_bytes_per_s,
        "recompute": again * 2e15 / on.matmul_flops["bf16"],
        "tensor": 1e11 / inside.bytes_per_s + 1e4 * inside.hop_s,
        "gather": 1e10 / outside.bytes_per_s,
        "launch": 0.8 / lay.microbatch,
    }
    scale = of.batch / 128
    return step(
        of.tokens,
        5e16 * scale,
        **{n: s * (scale if n != "gather" else 1) for n, s in parts.items()},
    )


def memory_model(of: Job) -> PeakMemory:
    """Activations grow with the microbatch and go with recomputation."""
    held = {"none": 16.0, "selective": 10.0, "full": 2.0}[of.layout.recompute]
    return memory(30 + held * of.layout.microbatch, of.machine.memory_bytes / GIB)


MODELS = StepModels(roofline, memory_model)


def plan(of: Job | None = None, run_: Run | None = None, **given: Any) -> Plan:
    made, asked = of or job(), run_ or run()
    return assemble(
        asked,
        made,
        given.pop("step", None) or roofline(made),
        given.pop("memory", None) or memory_model(made),
        MODELS,
        BANDS,
        given.pop("steps", asked.steps()),
        **given,
    )
