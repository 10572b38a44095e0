"""Rows of measured runs, as `Job`s: the data that the planner is fitted to and checked on.

A row is what somebody published, so blanks are filled with what that framework does by default and
each filled blank is written down in `assumed`. A row that cannot be filled is skipped with its
reason.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from penstock.catalog import accelerators, models
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan.backtest import memory_blanks, named_shapes, row_file
from penstock.plan.backtest.frameworks import moe_release, software_of, usual_zero
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.job.job import Adapter, Job
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory

Kind = Literal["throughput", "memory"]
NEEDED = {
    "throughput": {"model_name", "gpu", "num_gpus", "seq_len"},
    "memory": {"model_name", "gpu", "seq_len", "peak_mem_gib"},
}
LARGEST = 1e9  # of any cell
SURELY_TOO_MUCH = 2.0  # times the memory
RECOMPUTES = ("none", "selective", "full")  # from the least
# A stack of HBM2e, as the five of an H100 PCIe: 2000 GB/s and 80 GB (catalog).
HBM2E_BYTES_PER_S_PER_GB = 2000e9 / 80


class RowSkipped(Exception):
    """The reason why a row cannot be predicted."""


@dataclass(frozen=True)
class MeasuredRow:
    """One line of the file, and the job that it describes."""

    number: int  # 0-based, in the file
    cells: Mapping[str, str]
    job: Job | None
    skipped: str  # the reason, when there is no job
    assumed: tuple[str, ...] = ()  # what the row does not say

    @property
    def source(self) -> str:
        return self.cells.get("source", "") or "unnamed"

    @property
    def step_s(self) -> float | None:
        """Return the measured step time."""
        seconds = number(self.cells, "step_time_s")
        if seconds:
            return seconds
        rate = number(self.cells, "tokens_per_s_per_gpu")
        return self.job.tokens / rate / self.job.layout.ranks if rate and self.job else None


def read(path: Path) -> tuple[Kind, list[MeasuredRow]]:
    """Read all rows of a CSV with the columns of the throughput or of the memory table."""
    lines = row_file.lines(path)
    columns = set(lines[0])
    kind: Kind = "memory" if columns & {"peak_mem_gib", "reserved_gib"} else "throughput"
    missing = NEEDED[kind] - columns
    if kind == "throughput" and not columns & {"step_time_s", "tokens_per_s_per_gpu"}:
        missing = missing | {"step_time_s"}
    if missing:
        raise PenstockError(
            f"{path} has no column {', '.join(sorted(missing))}; `penstock backtest --help` lists "
            "the columns of all tables"
        )
    return kind, [_row(i, line) for i, line in enumerate(lines)]


def _row(i: int, cells: dict[str, str]) -> MeasuredRow:
    assumed: list[str] = []
    try:
        return MeasuredRow(i, cells, job_of(cells, assumed), "", tuple(assumed))
    except RowSkipped as why:
        return MeasuredRow(i, cells, None, str(why))
    except PenstockError as why:
        return MeasuredRow(i, cells, None, str(why))


def job_of(cells: Mapping[str, str], assumed: list[str]) -> Job:
    """Return the job of a row; `assumed` gets a line for every blank that was filled."""
    given, cells = cells, memory_blanks.filled(named_shapes.completed(cells, assumed), assumed)
    notes = " ".join((cells.get("notes", ""), cells.get("model_name", ""))).lower()
    precision = precision_of(cells.get("precision", ""), assumed)
    narrow = precision not in ("bf16", "fp16", "fp32")
    split = any(whole(cells, name) > 1 for name in ("tp", "pp", "ep"))
    software = software_of(cells.get("framework", ""), notes, narrow, split)
    shape = shape_of(cells, assumed)
    layout = layout_of(cells, software.name, notes, assumed)
    batch = whole(cells, "global_batch_seqs") or layout.microbatch * layout.replicate * layout.shard
    if "bf16-true" in cells.get("precision", "").lower() or "pure" in notes:
        software = replace(software, weight_bytes=2.0, grad_bytes=2.0, optimizer_bytes=4.0)
    machine = machine_of(cells, layout.ranks)
    if shape.moe:
        software = moe_release(software, notes, machine.fact)
    job = Job(
        shape=shape,
        sequence=_need(cells, "seq_len"),
        batch=batch,
        layout=layout,
        machine=machine,
        precision=precision,
        software=software,
        adapter=Adapter() if "lora" in cells.get("kind", "").lower() else None,
        imbalance=1.0 if re.search(r"(?<!im)(?<!un)balanced", notes) else None,
    )
    job = memory_blanks.completed(job, given)
    if not cells.get("recompute") and "peak_mem_gib" not in cells:
        job = _recomputing(job, assumed)
    return job


def _recomputing(job: Job, assumed: list[str]) -> Job:
    """Return the job with the least recompute that fits, where it surely would not fit without: a
    run that somebody measured did fit.

    A prediction somewhat above the memory proves nothing: recipes also narrow or offload states.
    """
    tries = [job.with_layout(replace(job.layout, recompute=kind)) for kind in RECOMPUTES]
    held = [memory.predict(tried) for tried in tries]
    found = tries[0]
    if held[0].peak_bytes > SURELY_TOO_MUCH * held[0].capacity_bytes:
        room = held[0].capacity_bytes
        fitting = (t for t, h in zip(tries, held, strict=True) if h.peak_bytes <= room)
        found = next(fitting, tries[-1])
    assumed.append(f"recompute {found.layout.recompute}")
    return found


def shape_of(cells: Mapping[str, str], assumed: list[str]) -> ModelShape:
    """Return the model, completed from the preset of the same family where there is one."""
    hidden, heads, layers = (_need(cells, name) for name in ("hidden", "heads", "layers"))
    kv_heads = whole(cells, "kv_heads") or heads
    experts = whole(cells, "experts")
    ffn = whole(cells, "ffn_hidden")
    expert_ffn = whole(cells, "moe_ffn_hidden") or (ffn if experts else 0)
    name = cells["model_name"].lower()
    if not ffn:
        gated = not _ungated(name)
        ffn = expert_ffn or (4 * hidden if not gated else round(8 * hidden / 3 / 256) * 256)
        assumed.append(f"ffn_hidden {ffn}")
    vocab = whole(cells, "vocab")
    if not vocab:
        vocab = 32000
        assumed.append("vocab 32000")
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        gated=not _ungated(name),
        experts=experts,
        experts_active=_active(cells, experts, assumed),
        expert_ffn=expert_ffn if experts else 0,
        shared_experts=whole(cells, "shared_experts") if experts else 0,
        dense_layers=whole(cells, "dense_layers") if experts else 0,
    )
    twin = _twin(name, shape)
    if twin:
        truncated = layers < twin.layers
        shape = replace(
            shape,
            head_dim=twin.head_dim,
            qk_norm=twin.qk_norm,
            gated=True,
            tied=twin.tied,
            shared_experts=twin.shared_experts,
            dense_layers=min(1, twin.dense_layers) if truncated else twin.dense_layers,
            q_rank=twin.q_rank,
            kv_rank=twin.kv_rank,
            rope_dim=twin.rope_dim,
            nope_dim=twin.nope_dim,
            v_dim=twin.v_dim,
        )
        return shape
    params = number(cells, "params_b")
    if params and not experts:
        choices = [replace(shape, gated=g, tied=t) for g in (True, False) for t in (True, False)]
        best = min(choices, key=lambda s: abs(s.params() - params * 1e9))
        if abs(best.params() / 1e9 / params - 1) < 0.1:
            return best
    return shape


def _active(cells: Mapping[str, str], experts: int, assumed: list[str]) -> int:
    active = whole(cells, "topk")
    if experts and not active:
        active = min(2, experts)
        assumed.append(f"topk {active}")
    return min(active, experts)


def _ungated(name: str) -> bool:
    return (
        re.search(r"gpt|mpt|nemotron|\bopt-|bloom|falcon|pythia|\bphi|\bbert|\bt5", name)
        is not None
    )


@cache
def _presets() -> tuple[tuple[str, ModelShape], ...]:
    return tuple((name, models.preset(name)) for name in models.names())


def _twin(name: str, shape: ModelShape) -> ModelShape | None:
    """Return the preset with the same widths: it knows head widths, latent attention, shared
    experts.
    """
    for _, preset in _presets():
        if (preset.hidden, preset.heads, preset.experts) == (
            shape.hidden,
            shape.heads,
            shape.experts,
        ):
            wide = preset.expert_ffn if preset.moe else preset.ffn
            if wide == (shape.expert_ffn if shape.moe else shape.ffn):
                return preset
    if shape.experts and re.search(r"deepseek|kimi|dsv3|dsv2", name):
        return models.preset("deepseek-v3")
    return None


def layout_of(cells: Mapping[str, str], framework: str, notes: str, assumed: list[str]) -> Layout:
    tensor, pipeline, context = (whole(cells, k) or 1 for k in ("tp", "pp", "cp"))
    model_ways = tensor * pipeline * context
    ranks = whole(cells, "num_gpus")
    data = whole(cells, "dp")
    if not ranks:
        if not data:
            raise RowSkipped("neither num_gpus nor dp is given")
        ranks = data * model_ways
    if ranks % model_ways:
        raise RowSkipped(f"tp × pp × cp = {model_ways} does not divide {ranks} accelerators")
    if data != ranks // model_ways:
        if data:
            assumed.append(f"dp {ranks // model_ways} (the row says {data})")
        data = ranks // model_ways
    sharding = cells.get("sharding", "").lower()
    zero = _zero(sharding, framework, pipeline, assumed)
    replicate, shard = (1, data) if zero else (data, 1)
    hybrid = re.search(r"over (\d+) .*replicate ([1-9]\d*)", sharding)
    if hybrid and data % int(hybrid[2]) == 0:
        replicate, shard = int(hybrid[2]), data // int(hybrid[2])
    batch = whole(cells, "global_batch_seqs")
    microbatch = whole(cells, "microbatch")
    if not microbatch:
        microbatch = max(1, min(batch // data, 8192 // _need(cells, "seq_len"))) if batch else 1
        assumed.append(f"microbatch {microbatch}")
    interleave = cells.get("interleave", "")
    layers = _need(cells, "layers")
    per_piece = re.fullmatch(r"layers/vstage=([1-9]\d*)", interleave)
    if per_piece:
        pieces = max(1, layers // pipeline // int(per_piece[1]))
    elif re.fullmatch(r"[1-9][0-9]*(\.0+)?", interleave):
        pieces = int(float(interleave))
    else:
        pieces = 1
        if interleave:
            assumed.append(f"interleave 1 (not read: '{interleave}')")
    if pipeline > layers:
        raise RowSkipped(f"pp {pipeline} is more than {layers} layers")
    expert = whole(cells, "ep") or 1
    experts = whole(cells, "experts")
    if experts and experts % expert:
        raise RowSkipped(f"ep {expert} does not divide {experts} experts")
    return Layout(
        replicate=replicate,
        shard=shard,
        microbatch=microbatch,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert if experts else 1,
        recompute=_recompute(cells.get("recompute", ""), assumed),
        interleave=pieces if pipeline > 1 else 1,
        zero=zero,
        sequence_parallel="no sequence parallel" not in notes and framework != "megatron-deepspeed",
        expert_tensor=whole(cells, "etp") or 1,
        # Two directions leave about as much of the bubble as weight gradients that fill it.
        zero_bubble="dualpipe" in notes and pipeline > 1,
    )


def _zero(sharding: str, framework: str, pipeline: int, assumed: list[str]) -> int:
    """Read what the words of a row shard: 1 the optimizer, 2 also gradients, 3 also weights."""
    stated = re.search(r"(?:zero|stage)\D{0,3}(\d)", sharding)
    if stated:
        if int(stated[1]) > 3:
            raise RowSkipped(f"sharding '{sharding}': ZeRO has stages 0 to 3")
        return int(stated[1])
    if re.fullmatch(r"ddp|dp|none|no", sharding):
        return 0
    for zero, words in (
        (2, "grad[-_ ]?op"),
        (1, "dist.*opt|optimizer shard(?!ing not stated)"),
        (3, "fsdp(?!=0)|full[-_ ]?shard|hsdp|hybrid[-_ ]?shard"),
    ):
        if re.search(words, sharding):
            return zero
    usual = usual_zero(framework, pipeline)
    read = f"; not read: '{sharding}'" if sharding and "ddp" not in sharding else ""
    assumed.append(f"ZeRO-{usual} (usual for {framework}{read})")
    return usual


def _recompute(text: str, assumed: list[str]) -> str:
    text = text.lower()
    if re.search(r"\b(none|no|not|false|off|0)\b", text):
        return "none"
    if re.search(r"sel|partial|norm|act\b|attn|attention", text):
        return "selective"
    if re.search(r"full|yes|true|\ball\b|block|every|\bon\b|^1$", text):
        return "full"
    if text:
        assumed.append(f"recompute none (not read: '{text}')")
    return "none"


# From the narrowest to the widest, as the words of a row may have several.
PRECISIONS = (
    (r"fp4", "fp4"),
    (r"mx|fine", "mxfp8"),
    (r"rowwise", "fp8-rowwise"),
    (r"fp8|float8|e4m3", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half|16-mixed", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
)


def precision_of(text: str, assumed: list[str]) -> str:
    text = text.lower()
    for words, precision in PRECISIONS:
        if re.search(words, text):
            return precision
    if text:
        raise RowSkipped(f"precision '{text}' is not one that is planned")
    assumed.append("precision bf16")
    return "bf16"


def machine_of(cells: Mapping[str, str], ranks: int) -> Machine:
    """Return the machine of a row; a power cap or another memory than the usual is in its name."""
    gpu = cells["gpu"]
    per_node = whole(cells, "gpus_per_node") or None
    machine = of_catalog(
        accelerator_named(gpu),
        ranks,
        min(per_node, ranks) if per_node else None,
        number(cells, "inter_node_gbps_per_gpu") or None,
    )
    memory_gib = number(cells, "gpu_mem_gib") or _memory_in(gpu)
    if memory_gib:
        machine = replace(machine, memory_bytes=int(memory_gib * 2**30))
    if "hbm2e" in gpu.lower() and memory_gib:
        machine = replace(machine, memory_bytes_per_s=HBM2E_BYTES_PER_S_PER_GB * memory_gib)
    capped = re.search(r"(\d+)\s*W\b", gpu)
    if capped:
        machine = replace(machine, tdp_w=float(capped[1]))
    return machine


def _memory_in(gpu: str) -> float | None:
    found = re.search(r"(\d+)\s*GB", gpu)
    return float(found[1]) if found else None


@cache
def accelerator_named(gpu: str) -> str:
    """Return the catalog's name for what a row calls its GPU; the SXM part where the row does
    not say.
    """
    printed = accelerators.for_device(gpu)  # as torch prints it
    if printed:
        return printed.name
    plain = re.sub(r"\(.*?\)|\b\d+\s*W\b", "", gpu).split("/")[0]
    words = re.sub(r"[-_]+", " ", plain).strip()
    words = re.sub(r"^(NVIDIA|AMD|Intel)\s+", "", words, flags=re.I)
    family = re.sub(r"\b\d+\s*GB\b|\bHBM\w*\b", "", words, flags=re.I).strip()
    for name in (words, family):
        found = accelerators.TABLE.matches(name)
        sxm = [row for row in found if "SXM" in row.name]
        for rows in (found, sxm):
            if len(rows) == 1:
                return rows[0].name
        if sxm:
            return max(sxm, key=lambda row: row.memory_gib).name
    split = re.sub(r"(?<=[A-Za-z])(?=\d)", " ", family)
    found = accelerators.TABLE.matches(split)
    if len(found) == 1:
        return found[0].name
    raise RowSkipped(f"the catalog has no accelerator '{gpu}'")


def whole(cells: Mapping[str, str], name: str) -> int:
    """Return an integer cell; 0 when blank."""
    value = number(cells, name)
    return int(value) if value else 0


def number(cells: Mapping[str, str], name: str) -> float | None:
    """Return a numeric cell; None when blank."""
    text = cells.get(name, "")
    if not text:
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise RowSkipped(f"{name} is '{text}', not a number that a run can have")
    return value


def _need(cells: Mapping[str, str], name: str) -> int:
    value = whole(cells, name)
    if value < 1:
        raise RowSkipped(f"{name} is blank")
    return value
