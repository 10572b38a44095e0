"""Jobs for the tests of the planner's core: machines with round numbers, small shapes, any layout.

The accelerator "paper" is in no catalog, so nothing but what is written here can decide a time.
"""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from penstock.catalog.shapes import ModelShape
from penstock.plan.hardware.machine import Machine, NetworkTier
from penstock.plan.job.job import Adapter, Job, Software
from penstock.plan.job.layout import Layout

GIB = 2**30
INF = float("inf")
UP = NetworkTier("scale-up", 8, 400e9, 2e-6)

DENSE = ModelShape(layers=8, hidden=1024, heads=16, kv_heads=4, ffn=4096, vocab=32000)
SPARSE = ModelShape(
    layers=8,
    hidden=512,
    heads=8,
    kv_heads=8,
    ffn=2048,
    vocab=32000,
    experts=8,
    experts_active=2,
    expert_ffn=1024,
    shared_experts=1,
    dense_layers=1,
)
LATENT = ModelShape(
    layers=6,
    hidden=1024,
    heads=16,
    kv_heads=16,
    ffn=4096,
    vocab=32000,
    q_rank=384,
    kv_rank=128,
    rope_dim=32,
    nope_dim=64,
    v_dim=64,
)


def out(count: int, bytes_per_s: float = 40e9, hop_s: float = 10e-6) -> NetworkTier:
    return NetworkTier("scale-out", count, bytes_per_s, hop_s)


def machine(count: int = 16, **changed: Any) -> Machine:
    """Nodes of eight: 500 TFLOP/s in 16 bits, twice that in 8, 2 TB/s of memory, 80 GiB."""
    fields: dict[str, Any] = {
        "name": "paper",
        "accelerator": "paper",
        "kind": "cuda",
        "per_node": 8,
        "nodes": -(-count // 8),
        "memory_bytes": 80 * GIB,
        "memory_bytes_per_s": 2e12,
        "peak_flops": {"bf16": 800e12},
        "matmul_flops": {"fp32": 50e12, "bf16": 500e12, "fp8": 1000e12, "fp4": 2000e12},
        "tiers": (UP, out(count)) if count > 8 else (UP,),
    }
    return Machine(**(fields | changed))


def perfect(count: int = 16, **changed: Any) -> Machine:
    """A network that takes no time, and a memory that takes none."""
    tiers = (
        NetworkTier("scale-up", 8, INF, 0.0),
        NetworkTier("scale-out", max(count, 8), INF, 0.0),
    )
    return machine(count, **({"tiers": tiers, "memory_bytes_per_s": INF} | changed))


def job(
    layout: Layout | None = None,
    shape: ModelShape = DENSE,
    batch: int = 64,
    sequence: int = 2048,
    on: Machine | None = None,
    **changed: Any,
) -> Job:
    lay = layout or Layout(replicate=1, shard=16)
    return Job(shape, sequence, batch, lay, on or machine(lay.ranks), **changed)


POWERS = st.sampled_from([1, 2, 4])
SOFTWARE = st.builds(
    Software,
    fused=st.booleans(),
    overlap_tensor=st.booleans(),
    overlap_data=st.booleans(),
    overlap_experts=st.booleans(),
    dedupes=st.booleans(),
    dropless=st.booleans(),
    graphs=st.booleans(),
    flash=st.booleans(),
    torch_checkpoints=st.booleans(),
    torch_layers=st.booleans(),
    grad_buffers=st.booleans(),
    tables_apart=st.booleans(),
    attention=st.sampled_from(["first", "second", "chip"]),
    reduce_bytes=st.sampled_from([2.0, 4.0]),
)


@st.composite
def shapes(draw: st.DrawFn, sparse: bool | None = None) -> ModelShape:
    """Dense, latent or sparse; widths of a small model."""
    kind = draw(st.sampled_from([DENSE, LATENT, SPARSE]) if sparse is None else st.just(SPARSE))
    fields = {one.name: getattr(kind, one.name) for one in dataclasses.fields(kind)} | {
        "layers": draw(st.integers(4, 9)),
        "hidden": draw(st.sampled_from([512, 1024, 4096])),
        "gated": draw(st.booleans()),
        "tied": draw(st.booleans()),
    }
    if kind is SPARSE:
        fields |= {
            "experts_active": draw(st.sampled_from([1, 2, 4])),
            "shared_experts": draw(st.integers(0, 1)),
            "dense_layers": draw(st.integers(0, 2)),
        }
    return ModelShape(**fields)


@st.composite
def jobs(draw: st.DrawFn, **fixed: Any) -> Job:
    """Any legal job of at most 256 ranks."""
    shape = draw(shapes())
    tensor, pipeline, context, shard, replicate = (draw(POWERS) for _ in range(5))
    microbatch, rounds = draw(POWERS), draw(st.integers(1, 3))
    layout = Layout(
        replicate=replicate,
        shard=shard,
        microbatch=microbatch,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=draw(st.sampled_from([1, shard * context * tensor])) if shape.moe else 1,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        interleave=draw(st.sampled_from([1, 2])) if pipeline > 1 else 1,
        zero=draw(st.sampled_from([1, 2, 3])),
        sequence_parallel=draw(st.booleans()),
        zero_bubble=draw(st.booleans()),
    )
    layout = layout if layout.expert <= shape.experts else Layout(**vars(layout) | {"expert": 1})
    fields: dict[str, Any] = {
        "shape": shape,
        "sequence": draw(st.sampled_from([512, 4096])),
        "batch": replicate * shard * microbatch * rounds * pipeline,
        "layout": layout,
        "machine": machine(layout.ranks),
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8", "mxfp8", "fp4"])),
        "software": draw(SOFTWARE),
        "adapter": draw(st.sampled_from([None, None, None, Adapter(), Adapter(bits=4)])),
    }
    return Job(**(fields | fixed))
