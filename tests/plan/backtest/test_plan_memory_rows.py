"""What a memory row says outside its columns is read, and written down where it is a guess."""

import pytest

from penstock.errors import PenstockError
from penstock.plan.backtest import memory_blanks, memory_rows
from penstock.plan.backtest.named_shapes import OLDER, named
from penstock.plan.backtest.rows import MeasuredRow, RowSkipped, job_of

LLAMA = {
    "model_name": "Llama 2 7 B",
    "gpu": "A100-80GB",
    "gpu_mem_gib": "80",
    "num_gpus": "1",
    "seq_len": "1024",
    "microbatch": "1",
    "precision": "bf16-true",
    "recompute": "none",
    "framework": "LitGPT",
    "peak_mem_gib": "20",
    "mem_metric": "torch max_memory_allocated GiB",
}
GPT = {
    "model_name": "gpt/gpt3_test",
    "layers": "12",
    "hidden": "512",
    "ffn_hidden": "2048",
    "heads": "8",
    "kv_heads": "8",
    "seq_len": "1024",
    "gpu": "A100-80GB",
    "tp": "2",
    "pp": "2",
    "sharding": "none(zero0)",
    "microbatch": "4",
    "global_batch_seqs": "32",
    "recompute": "none",
    "precision": "bf16",
    "framework": "Megatron-LM",
    "peak_mem_gib": "1",
    "notes": "flags: transformer-impl=transformer_engine",
}


def job(cells: dict[str, str], **changes: str):
    return job_of({**cells, **changes}, [])


def row(cells: dict[str, str], **changes: str) -> MeasuredRow:
    full = {**cells, **changes}
    return MeasuredRow(0, full, job_of(full, []), "")


def test_a_name_is_enough():
    assumed: list[str] = []
    assert job_of(LLAMA, assumed).shape.params() == 6_738_415_616
    assert any(line.startswith("hidden 4096") for line in assumed)


@pytest.mark.parametrize(
    ("name", "params"),
    [("phi-1.5 1.3 B", 1.418e9), ("StableLM Alpha 3 B", 3.638e9), ("Falcon 40 B", 41.3e9)],
)
def test_older_shapes_have_their_published_size(name, params):
    shape = named(name)
    assert shape in OLDER.values()
    assert shape.params() == pytest.approx(params, rel=2e-3)


def test_an_unknown_name_is_not_guessed():
    assert named("Llama 2 8 B") is None


def test_other_tables_are_left_alone():
    cells = {"model_name": "Llama 2 7 B", "notes": "multiple gpus flags: swiglu"}
    assumed: list[str] = []
    assert memory_blanks.filled(cells, assumed) is cells
    assert not assumed


def test_flags_are_read():
    flags = (
        "flags: swiglu sequence-parallel attention-backend=unfused multi-latent-attention "
        "vocab-size=131073 moe-layer-freq=([0]*3+[1]*9) moe-shared-expert-intermediate-size=1024 "
        "mtp-num-layers=1 untie-embeddings-and-output-weights"
    )
    made = job(GPT, notes=flags, experts="8", topk="2", moe_ffn_hidden="512")
    assert made.shape.gated
    assert not made.shape.tied
    assert (made.shape.vocab, made.shape.dense_layers, made.shape.shared_experts) == (131073, 3, 2)
    assert made.shape.kv_rank == 512
    assert made.layout.sequence_parallel
    assert not made.software.flash
    assert not made.software.dropout
    assert made.software.ahead_layers == 1
    plain = job(GPT)
    assert plain.shape.tied
    assert plain.software.flash
    assert plain.software.dropout
    assert not plain.layout.sequence_parallel
    assert plain.layout.zero == 0


def test_blank_ranks_are_those_of_the_tests():
    assumed: list[str] = []
    assert job_of(GPT, assumed).layout.ranks == 8
    assert any(line.startswith("num_gpus 8") for line in assumed)
    assert job(GPT, model_name="gpt3_release").layout.ranks == 64
    wide = job(GPT, pp="8", ep="8", experts="8", topk="2", layers="16")
    assert wide.layout.ranks == 128  # experts of eight stages, split as tensors are


@pytest.mark.parametrize(
    ("notes", "bits"),
    [
        ("LoRA; 3083 tok/s", 16),
        ("QLoRA; packed", 4),
        ("Finetuning with LoRA on 1 GPU; quant bnb.nf4", 4),
        ("Finetuning with Adapter on 1 GPU; quant None", 16),
        ("full; 2579 tok/s", None),
        ("+Packed (cumulative; LoRA/QLoRA separate)", None),
    ],
)
def test_adapters_are_in_the_notes(notes, bits):
    adapter = memory_blanks.adapter_of(notes.lower())
    assert (adapter.bits if adapter else None) == bits


def test_torchtune_adds_one_after_the_other():
    steps = ["+Packed", "+Compile", "+Chunked CE", "+Optimizer in backward", "+8-bit AdamW"]
    traits = [
        job(LLAMA, framework="torchtune", notes=f"{step} (cumulative; LoRA/QLoRA separate)")
        for step in steps
    ]
    assert [t.software.fused for t in traits] == [False, True, True, True, True]
    assert [t.software.logit_bytes for t in traits] == [12, 12, 4, 4, 4]
    assert [t.software.grad_bytes for t in traits] == [2, 2, 2, 0, 0]
    assert [t.software.optimizer_bytes for t in traits] == [4, 4, 4, 4, 2]
    with pytest.raises(PenstockError, match="not packed"):
        job(LLAMA, framework="torchtune", notes="Baseline (cumulative; LoRA/QLoRA separate)")


def test_the_host_keeps_what_the_notes_say():
    fsdp = job(LLAMA, framework="torchtune", num_gpus="8", notes="full + CPU offload")
    assert fsdp.software.offload
    assert fsdp.software.weight_bytes == 0
    zero = job(LLAMA, framework="DeepSpeed/HF", num_gpus="8", sharding="zero3 + CPU AdamW offload")
    assert zero.software.offload
    assert zero.software.weight_bytes == 2
    moved = job(LLAMA, framework="torchtune", notes="+Activation offloading (cumulative; LoRA)")
    assert not moved.software.offload


def test_metric_and_unit_are_the_rows():
    gib, fits = memory_rows.predict_row(row(LLAMA))
    gb, _ = memory_rows.predict_row(row(LLAMA, mem_metric="max GPU RAM GB as printed"))
    assert gb == pytest.approx(gib * 2**30 / 1e9)
    reserved, _ = memory_rows.predict_row(row(LLAMA, peak_mem_gib="", reserved_gib="22"))
    assert gib < reserved < 1.5 * gib
    used, _ = memory_rows.predict_row(row(LLAMA, mem_metric="nvidia-smi used, GB as printed"))
    assert used > reserved * 1000 * 2**20 / 2**30 * 0.9
    assert fits
    assert not memory_rows.predict_row(row(LLAMA, gpu_mem_gib="12"))[1]


def test_components_are_asked_for_by_name():
    total, _ = memory_rows.predict_row(row(GPT))
    state, _ = memory_rows.predict_row(row(GPT, component="params+grads+optimizer"))
    kept, _ = memory_rows.predict_row(row(GPT, component="activations"))
    assert 0 < state < total
    assert 0 < kept < total
    with pytest.raises(RowSkipped, match="component is 'heat'"):
        memory_rows.predict_row(row(GPT, component="heat"))


def test_a_share_of_activations_is_in_percent():
    cells = {**GPT, "notes": "", "num_gpus": "8", "component": "activations(relative)"}
    cells["mem_metric"] = "PERCENT of TP-only baseline activation memory: 62.04"
    assert memory_rows.measured(row(cells)) == 62.04
    assert memory_rows.predict_row(row(cells, recompute="none"))[0] == pytest.approx(100)
    assert memory_rows.predict_row(row(cells, recompute="seqsel"))[0] < 50


def test_the_last_rank_is_reported_but_the_fullest_must_fit():
    last = "torch allocated_bytes.all.peak on LAST rank"
    fullest, _ = memory_rows.predict_row(row(GPT, pp="4", layers="12", seq_len="8192"))
    reported, _ = memory_rows.predict_row(
        row(GPT, pp="4", layers="12", seq_len="8192", mem_metric=last)
    )
    assert reported < fullest


def test_generating_holds_weights_only():
    gib, _ = memory_rows.predict_row(row(LLAMA, notes="Single-GPU Inference; quant None"))
    assert gib == pytest.approx(2 * 6.738e9 / 2**30, rel=0.05)
