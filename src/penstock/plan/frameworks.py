"""What the common training programs do by default: traits, not constants fitted to them."""

import re

from penstock.plan.job import Software

# Megatron keeps bf16 weights, fp32 gradients, and fp32 weights and moments in the optimizer.
_MEGATRON = Software(
    name="megatron",
    reduce_bytes=2.0,
    fused=True,
    attention="chip",
    torch_checkpoints=False,
    weight_bytes=2.0,
    grad_bytes=4.0,
    optimizer_bytes=12.0,
)
_NEMO = Software(
    name="nemo",
    reduce_bytes=2.0,
    fused=True,
    attention="chip",
    torch_checkpoints=False,
    overlap_tensor=True,
    weight_bytes=2.0,
    grad_bytes=4.0,
    optimizer_bytes=12.0,
)
# FSDP keeps fp32 shards of weights, gradients and moments, and gathers bf16.
_FSDP = Software(name="fsdp", weight_bytes=4.0, grad_bytes=4.0, optimizer_bytes=8.0)

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
            weight_bytes=2.0,
            grad_bytes=2.0,
            optimizer_bytes=12.0,
        ),
    ),
    (r"megatron", _MEGATRON),
    (
        r"maxtext|jax|xla",
        Software(name="xla", fused=True, attention="chip", overlap_tensor=True),
    ),
    (r"torchtitan", Software(name="torchtitan")),
    (r"composer|llm-foundry|fsdp1", Software(name="composer", attention="first")),
    (
        r"lit-?gpt|lightning",
        Software(name="litgpt", weight_bytes=4.0, grad_bytes=4.0, optimizer_bytes=8.0),
    ),
    (
        r"torchtune",
        Software(name="torchtune", weight_bytes=2.0, grad_bytes=2.0, optimizer_bytes=4.0),
    ),
    (
        r"deepspeed|hugging|hf\b|transformers|accelerate",
        Software(name="deepspeed", weight_bytes=2.0, grad_bytes=2.0, optimizer_bytes=12.0),
    ),
    (r"penstock", Software()),
)
# What a blank sharding means: NeMo and Megatron-Bridge train with the distributed optimizer.
SHARDED = {"nemo": 1, "megatron": 1, "megatron-deepspeed": 0, "composer": 3, "torchtitan": 3}


def software_of(framework: str, notes: str, narrow: bool = False) -> Software:
    """The program's traits; what the notes say of a run wins over its defaults."""
    name = framework.lower()
    found = next((s for pattern, s in KNOWN if re.search(pattern, name)), _FSDP)
    changes: dict[str, bool] = {}
    if found.name == "megatron" and narrow:  # 8-bit comes with Transformer Engine's overlap
        changes["overlap_tensor"] = True
    if "compile" in notes and "no compile" not in notes:
        changes["fused"] = True
    if re.search(r"async ?-?tp", notes):
        changes["overlap_tensor"] = True
    if "vanilla tp" in notes:
        changes["overlap_tensor"] = False
    if "a2a overlap" in notes:
        changes["overlap_experts"] = True
    if "dispatcher a2a" in notes:
        changes["dedupes"] = False
    if "tokendrop" in notes or "token drop" in notes:
        changes["dropless"] = False
    return Software(**{**vars(found), **changes}) if changes else found
