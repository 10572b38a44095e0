"""The blanks of a row of measured memory, filled from its name and its notes.

A throughput row does without most of this; a memory row cannot: whether scores are stored, which
tables are tied, what is frozen and what is on the host decide the peak. Notes that list a program's
flags ("flags: swiglu sequence-parallel ...") are read flag by flag.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan.backtest.named_shapes import named
from penstock.plan.job.job import Adapter, Job, Software

# Megatron-LM's tests run on one node (its recipes: 1 × 8); those named "release" on a cluster whose
# size is not published. 64 is the least that holds most of their layouts.
TEST_RANKS = 8
RELEASE_RANKS = 64
TOKENIZERS = {"nemotron_2_256k": 256_000, "llama2tokenizer": 32_000, "bpe/vocab.json": 50_257}
# The order in which torchtune's table adds one optimization after the other.
ADDED = (
    "baseline",
    "+packed",
    "+compile",
    "+chunked ce",
    "+activation checkpointing",
    "+optimizer in backward",
    "+activation offloading",
    "+8-bit adamw",
    "lora",
)


def filled(cells: Mapping[str, str], assumed: list[str]) -> Mapping[str, str]:
    """Return the row with blanks filled from its name and notes; other tables are left as they
    are.
    """
    if "peak_mem_gib" not in cells:
        return cells
    full = dict(cells)
    notes = cells.get("notes", "").lower()

    def fill(column: str, value: str | int, why: str) -> None:
        if not full.get(column):
            full[column] = str(value)
            assumed.append(f"{column} {value} ({why})")

    for sign, vocab in TOKENIZERS.items():
        if sign in notes:
            fill("vocab", vocab, "its tokenizer")
    if "multiple gpus" in notes:  # the table gives one row's accelerators for all
        full["num_gpus"] = ""
        fill("num_gpus", 2, "the notes say several")
        fill("recompute", "full", "the default with several accelerators")
    if notes.startswith("baseline (cumulative"):
        raise PenstockError("samples are not packed: how long they are is not given")
    if "inference" in notes:
        fill("seq_len", 1024, "only the cache of keys depends on it")
    if "cumulative" in notes and notes.startswith(("lora", "qlora")):
        full["recompute"] = "full"  # on top of all that the table added before
    if "torchtune" in cells.get("framework", "").lower():
        fill("recompute", "full", "torchtune's recipes checkpoint activations")
    if "flags:" in notes:
        fill("etp", cells.get("tp") or 1, "Megatron's default: as tp")
        if not cells.get("dp"):
            fill("num_gpus", _test_ranks(full), "the usual of Megatron's tests")
    return full


def _test_ranks(cells: Mapping[str, str]) -> int:
    """Return the ranks that the test usually gets, and at least those that its layout needs."""
    tp, pp, cp, ep, etp = (int(cells.get(k) or 1) for k in ("tp", "pp", "cp", "ep", "etp"))
    usual = RELEASE_RANKS if "release" in cells.get("model_name", "") else TEST_RANKS
    return max(usual, tp * pp * cp, ep * etp * pp)


def completed(job: Job, cells: Mapping[str, str]) -> Job:
    """Return the job with what only the notes say."""
    if "peak_mem_gib" not in cells:
        return job
    notes = cells.get("notes", "").lower()
    shape, soft, layout = job.shape, job.software, job.layout
    if not cells.get("hidden"):
        shape = named(cells["model_name"]) or shape
    if "flags:" in notes:
        flags = notes.partition("flags:")[2].split()
        # Megatron drops out unless told not to; tests of newer blocks and of releases do tell it.
        dropout = "swiglu" not in flags and "release" not in cells["model_name"]
        shape, soft = _flagged_shape(shape, flags), _flagged_software(soft, flags, dropout)
        layout = replace(layout, sequence_parallel="sequence-parallel" in flags)
        modules = re.search(r"recompute-modules=\[([^\]]*)", notes)
        offloaded = "fine-grained-activation-offloading" in flags
        if modules and "core_attn" not in modules[1] and not offloaded:
            # Cheap parts only: stored scores stay.
            layout = replace(layout, recompute="none")
    elif soft.name == "megatron" and _before_flash(job, cells):
        soft = replace(soft, flash=False, dropout=True)
        layout = replace(layout, sequence_parallel=_split_stream(cells))
    if not cells.get("global_batch_seqs") and layout.pipeline > 1:
        enough = layout.pipeline * layout.interleave * layout.microbatch * job.data_ways
        job = replace(job, batch=enough)
    if soft.name == "megatron-deepspeed":
        shape, soft = _of_deepspeed(job, shape)
    adapter = job.adapter or adapter_of(notes)
    soft = _noted(soft, notes, cells, adapter)
    return replace(job, shape=shape, software=soft, layout=layout, adapter=adapter)


def _of_deepspeed(job: Job, shape: ModelShape) -> tuple[ModelShape, Software]:
    """Apply what DeepSpeed's pipeline does with layers and with bf16 gradients.

    It fills stages with whole layers from the first on. Where the layers do not divide, its first
    stages are as full as those of a model whose layers do; with two layers less than that, people
    have it count the embeddings as layers. Its bf16 optimizer keeps the gradients of the last
    backward pass beside whole sums of them in fp32.
    """
    soft, stages = job.software, job.layout.pipeline
    if shape.layers % stages and (shape.layers + 2) % stages:
        shape = replace(shape, layers=-(-shape.layers // stages) * stages)
    if job.precision == "bf16":
        soft = replace(soft, grad_bytes=2.0 + 4.0, flat_bytes=0.0, bucket_params=1e9)
    return shape, soft


def _before_flash(job: Job, cells: Mapping[str, str]) -> bool:
    """Recognise tables of 2022: half precision, or activations as a share of what stored scores
    need.
    """
    return job.precision == "fp16" or "relative" in cells.get("component", "")


def _split_stream(cells: Mapping[str, str]) -> bool:
    """Read sequence parallelism in tables that write it as a kind of recomputation."""
    kind = cells.get("recompute", "").lower()
    together = "selective = sequence parallel" in cells.get("notes", "").lower()
    return "seq" in kind or (together and kind == "selective")


def _flagged_shape(shape: ModelShape, flags: list[str]) -> ModelShape:
    values = dict(flag.partition("=")[::2] for flag in flags)
    vocab = values.get("vocab-size")
    shape = replace(
        shape,
        gated="swiglu" in flags,
        tied="untie-embeddings-and-output-weights" not in flags,
        vocab=int(vocab) if vocab else shape.vocab,
    )
    if "multi-latent-attention" in flags and not shape.kv_rank:
        like = models.preset("deepseek-v3")
        widths = ("q_rank", "kv_rank", "rope_dim", "nope_dim", "v_dim")
        shape = replace(shape, **{name: getattr(like, name) for name in widths})
    shared = values.get("moe-shared-expert-intermediate-size")
    if shared and shape.expert_ffn:
        shape = replace(shape, shared_experts=int(shared) // shape.expert_ffn)
    leading = re.match(r"\(\[0\]\*(\d+)", values.get("moe-layer-freq", ""))
    return replace(shape, dense_layers=int(leading[1])) if leading else shape


def _flagged_software(soft: Software, flags: list[str], dropout: bool) -> Software:
    stored = "attention-backend=unfused" in flags or "transformer-impl=local" in flags
    ahead = next((f.partition("=")[2] for f in flags if f.startswith("mtp-num-layers=")), "0")
    return replace(soft, flash=not stored, dropout=dropout, ahead_layers=int(ahead))


def adapter_of(notes: str) -> Adapter | None:
    """Read low-rank training from the notes, 4-bit where they name a quantization."""
    said = notes.partition("(")[0]
    if "inference" in said:
        return Adapter(bits=4) if "nf4" in said else Adapter()
    if not re.search(r"lora|adapter", said):
        return None
    return Adapter(bits=4) if re.search(r"qlora|nf4", said) else Adapter()


def _noted(
    soft: Software, notes: str, cells: Mapping[str, str], adapter: Adapter | None
) -> Software:
    if re.search(r"liger", notes) and "liger-kernel off" not in notes:
        soft = replace(soft, fused=True, chunked_loss=True, inplace_gates=True)
    if "ce fusion" in notes:
        soft = replace(soft, logit_bytes=4.0)
    if soft.name == "torchtune":
        soft = _torchtune(soft, notes, cells.get("num_gpus") == "1" and adapter is None)
    if re.search(r"cpu \w*\s*offload|offload-class", notes + cells.get("sharding", "").lower()):
        soft = replace(soft, offload=True)
        if soft.name == "torchtune" and cells.get("num_gpus") != "1":
            soft = replace(soft, weight_bytes=0.0, grad_bytes=0.0)  # FSDP moves these as well
    return soft


def _torchtune(soft: Software, notes: str, alone: bool) -> Software:
    """Apply its recipes for one accelerator: they step in the backward pass, with 8-bit moments."""
    if "cumulative" not in notes:
        return replace(soft, grad_bytes=0.0, optimizer_bytes=2.0) if alone else soft
    step = next(i for i, name in enumerate(ADDED) if name in notes)
    return replace(
        soft,
        fused=step >= ADDED.index("+compile"),
        logit_bytes=soft.logit_bytes if step >= ADDED.index("+chunked ce") else 12.0,
        grad_bytes=0.0 if step >= ADDED.index("+optimizer in backward") else soft.grad_bytes,
        optimizer_bytes=2.0 if step >= ADDED.index("+8-bit adamw") else soft.optimizer_bytes,
    )
