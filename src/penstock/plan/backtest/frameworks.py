"""The default properties of common training programs: facts, not constants fitted to them."""

import re
from dataclasses import replace

from penstock.catalog.accelerators import Accelerator
from penstock.plan.hardware.machine import MOST_IN_A_NODE
from penstock.plan.job.job import Software

# Megatron keeps bf16 weights, fp32 gradients, and fp32 weights and moments in the optimizer; NeMo's
# recipes keep bf16 gradients. The loss works in place on one fp32 copy of the logits and then makes
# their bf16 gradient.
_MEGATRON = Software(
    name="megatron",
    reduce_bytes=2.0,
    fused=True,
    attention="chip",
    torch_checkpoints=False,
    torch_layers=False,
    grad_buffers=True,
    weight_bytes=2.0,
    grad_bytes=4.0,
    optimizer_bytes=12.0,
    logit_bytes=6.0,
)
_NEMO = replace(_MEGATRON, name="nemo", overlap_tensor=True, grad_bytes=2.0)
# FSDP keeps fp32 shards of weights, gradients and moments, and gathers bf16.
_FSDP = Software(
    name="fsdp",
    fsdp=True,
    torch_layers=False,
    weight_bytes=4.0,
    grad_bytes=4.0,
    optimizer_bytes=8.0,
)

# Our decoder one operation at a time under FSDP2, as `scripts/measure_memory.py` measures it; what
# the trainer makes of it is in `plan/job/own.py`. Replicas agree after the last backward pass.
PENSTOCK = Software(name="penstock", overlap_data=False)

KNOWN: tuple[tuple[str, Software], ...] = (
    (r"bridge|nemo", _NEMO),
    (
        r"megatron-deepspeed",
        Software(
            name="megatron-deepspeed",
            fused=True,
            flash=False,
            overlap_data=False,
            torch_checkpoints=False,
            torch_layers=False,
            weight_bytes=2.0,
            grad_bytes=2.0,
            optimizer_bytes=12.0,
            bucket_params=5e8,  # its default reduce_bucket_size
            flat_bytes=6.0,  # of its partition: 16-bit gradients joined, then made fp32
            pass_states=1.0,  # DeepSpeed's pipeline holds on to the output of a stage
            context_bytes=1.5e9,  # CUDA before 11.7 loads every kernel (BigScience's own figure)
        ),
    ),
    # nanotron has Megatron's layout and optimizer, but gates and residuals are torch operations.
    (r"nanotron", replace(_MEGATRON, name="nanotron", fused=False, overlap_tensor=True)),
    # GPT-NeoX 1.0: kernels of its own for softmax and GELU only; DeepSpeed waits for the device
    # after each checkpointed layer and reduces gradients in buckets.
    (r"neox", replace(_MEGATRON, name="gpt-neox", fused=False)),
    # Meta's program of LLaMA and Llama 2: xformers' attention, operations of torch, outputs of
    # matrices kept, tensor-parallel collectives behind work (arXiv 2302.13971, 2.4).
    (
        r"^meta$",
        replace(_MEGATRON, name="meta", fused=False, attention="first", overlap_tensor=True),
    ),
    (r"megatron|colossal", _MEGATRON),
    (
        r"maxtext|jax|xla",
        Software(name="xla", torch_layers=False, fused=True, attention="chip", overlap_tensor=True),
    ),
    (
        r"torchtitan",
        Software(name="torchtitan", tables_apart=True, fsdp=True, keeps_gathered=True),
    ),
    (
        r"composer|llm-foundry|fsdp1",
        Software(name="composer", torch_layers=False, attention="first"),
    ),
    (
        r"lit-?gpt|lightning",
        Software(
            name="litgpt",
            torch_layers=False,
            weight_bytes=4.0,
            grad_bytes=4.0,
            optimizer_bytes=8.0,
            shards_late=True,
        ),
    ),
    (
        r"torchtune",
        # Its loss takes the logits in pieces but keeps them and their gradients in 16 bits.
        Software(
            name="torchtune",
            torch_layers=False,
            weight_bytes=2.0,
            grad_bytes=2.0,
            optimizer_bytes=4.0,
            logit_bytes=4.0,
            tables_apart=True,
        ),
    ),
    (
        r"deepspeed|hugging|hf\b|transformers|accelerate",
        # Its defaults: reduce_bucket_size 5e8, twice with overlap; stage3_max_live_parameters 1e9.
        Software(
            name="deepspeed",
            torch_layers=False,
            grad_buffers=True,
            weight_bytes=2.0,
            grad_bytes=2.0,
            optimizer_bytes=12.0,
            bucket_params=1e9,
            flat_bytes=6.0,
            live_params=1e9,
            tables_apart=True,
        ),
    ),
    (r"penstock", PENSTOCK),
)


def usual_zero(framework: str, pipeline: int) -> int:
    """Return what a program shards when a row does not say. With a pipeline, weights stay whole:
    no program gathers them for every microbatch of every stage.
    """
    usual = SHARDED.get(framework, 1)
    return min(usual, 1) if pipeline > 1 else usual


# What a blank sharding means: NeMo and Megatron-Bridge train with the distributed optimizer.
SHARDED = {
    "nemo": 1,
    "nanotron": 1,
    "gpt-neox": 1,
    "meta": 1,
    "megatron": 1,
    "megatron-deepspeed": 0,
    "composer": 3,
    "torchtitan": 3,
    "torchtune": 3,
    "litgpt": 3,
    "xla": 3,
    "fsdp": 3,
    "eager torch": 3,
    "penstock": 3,
}


# NVIDIA's containers for mixtures of experts, by year and month of the release. Their guide to
# hardware says for racks of GB200 and GB300: partial CUDA graphs and less work of the host (guide
# "MoE Hardware Configuration" of Megatron-Bridge; arXiv 2603.07685). From 26.06 on, the same
# configurations on Blackwell are 20 to 35 % faster in its own tables, which is their all-to-all:
# taken as run behind other microbatches, without looking from the host.
GRAPHS_SINCE = (25, 11)
HIDDEN_SINCE = (26, 6)
BLACKWELL_YEAR = 2024


def moe_release(soft: Software, notes: str, chip: Accelerator | None) -> Software:
    """Return what a program does with experts in the release that the notes name, on a chip."""
    named = re.search(r"(\d\d)\.(\d\d)(?:\.\d+)? nemo container", notes)
    if soft.name != "nemo" or not named or chip is None or chip.year < BLACKWELL_YEAR:
        return soft
    release = (int(named[1]), int(named[2]))
    if release >= HIDDEN_SINCE:
        return replace(soft, graphs=True, overlap_experts=True)
    rack = chip.domain > MOST_IN_A_NODE
    return replace(soft, graphs=True) if rack and release >= GRAPHS_SINCE else soft


def software_of(
    framework: str, notes: str, narrow: bool = False, model_parallel: bool = False
) -> Software:
    """Return the program's properties; the notes of a run win over its defaults.

    A program that nobody described is taken to be like Megatron where it splits the model or
    trains in 8 bits, and like FSDP where it does not: others build on these two.
    """
    name = framework.lower()
    like = _MEGATRON if model_parallel or narrow else _FSDP
    found = next((s for pattern, s in KNOWN if re.search(pattern, name)), like)
    changes: dict[str, bool | float | str] = {}
    if found.name == "megatron" and narrow:  # 8-bit comes with Transformer Engine's overlap
        changes["overlap_tensor"] = True
    if "compile" in notes and "no compile" not in notes:
        changes["fused"] = True
    # TinyLlama's code calls hand-fused kernels; its shape in Penstock does not.
    if found.name != "penstock" and re.search(r"(?<!un)fused|tinyllama", notes):
        changes["fused"] = True
    if re.search(r"async ?-?tp", notes):
        changes["overlap_tensor"] = True
    if "vanilla tp" in notes:
        changes["overlap_tensor"] = False
    if "dualpipe" in notes:
        changes["dual_pipe"] = True
    if "8-bit dispatch" in notes:  # there and, for gradients, back; results travel in 16 bits
        changes["dispatch_bytes"] = 1.5
    if "32-bit reduction" in notes:
        changes["reduce_bytes"] = 4.0
    if "flashattention 1" in notes:
        changes["attention"] = "first"
    if "a2a overlap" in notes:
        changes["overlap_experts"] = True
    if "dispatcher a2a" in notes:
        changes["dedupes"] = False
    if "tokendrop" in notes or "token drop" in notes:
        changes["dropless"] = False
    return Software(**{**vars(found), **changes}) if changes else found
