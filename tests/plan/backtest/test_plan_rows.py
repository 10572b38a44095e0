"""Rows of published measurements as jobs: names, words, blanks, and what cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measured_rows import MEMORY, MOE, THROUGHPUT, write
from penstock.catalog.models import preset
from penstock.errors import PenstockError
from penstock.plan.backtest.frameworks import PENSTOCK, SHARDED, moe_release, software_of
from penstock.plan.backtest.rows import (
    MeasuredRow,
    RowSkipped,
    accelerator_named,
    machine_of,
    number,
    precision_of,
    read,
    whole,
)
from penstock.plan.job.job import Adapter, Job
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory

GIB = 2**30


def row(path: Path, **cells: object) -> MeasuredRow:
    base = THROUGHPUT | dict.fromkeys(cells, "")
    (found,) = read(write(path / "row.csv", cells, base=base))[1]
    return found


def job(path: Path, **cells: object) -> Job:
    found = row(path, **cells)
    assert found.job, found.skipped
    return found.job


def layout(path: Path, **cells: object) -> Layout:
    return job(path, **cells).layout


# The file.


def test_a_whole_row(tmp_path: Path) -> None:
    found = row(tmp_path)
    assert found.job
    assert found.assumed == ()
    assert (found.number, found.source, found.step_s) == (0, "lab", 1.0)
    assert found.job.layout == Layout(1, 8, 1)
    assert (found.job.sequence, found.job.batch, found.job.precision) == (2048, 64, "bf16")
    assert found.job.machine.accelerator == "H100 SXM5"
    shape = found.job.shape
    assert (shape.layers, shape.hidden, shape.ffn, shape.heads) == (16, 2048, 8192, 32)
    assert (shape.kv_heads, shape.vocab, shape.moe, shape.gated) == (8, 32000, False, True)
    assert (found.job.adapter, found.job.imbalance) == (None, None)


def test_which_table_it_is(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.csv", {}))[0] == "throughput"
    assert read(write(tmp_path / "m.csv", {}, base=MEMORY))[0] == "memory"


def test_a_mark_of_byte_order_is_not_part_of_the_first_column(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    plain = write(tmp_path / "a.csv", {}).read_text()
    marked = tmp_path / "b.csv"
    marked.write_text("\ufeff" + plain.replace("source,", "source,", 1), encoding="utf-8")
    (found,) = read(marked)[1]
    assert found.source == "lab"


def test_spaces_short_lines_and_long_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"gpu": "  H100  ", "source": " "})
    text = file.read_text().rstrip("\r\n")
    file.write_text(text + ",left,over\n" + text.splitlines()[1].rsplit(",", 1)[0] + "\n")
    long, short = read(file)[1]
    assert long.job
    assert long.job.machine.accelerator == "H100 SXM5"
    assert long.source == "unnamed"
    assert short.job
    assert short.step_s is None  # the last cell is not there


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no rows; it needs a header"),
        ("model_name,gpu,num_gpus,seq_len,step_time_s\n", "has no rows"),
        ("model_name,gpu\na,H100\n", "has no column num_gpus, seq_len, step_time_s; "),
        ("model_name,gpu,num_gpus,seq_len\na,H100,8,1\n", "has no column step_time_s; "),
        ("model_name,gpu,peak_mem_gib\na,H100,8\n", "has no column seq_len; "),
        ("a,b\n" + "x" * 200_000 + ",1\n", "is not a CSV file: field larger than field limit"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(PenstockError) as caught:
        read(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"cannot read .*none\.csv: No such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PenstockError, match=r"bytes\.csv is not a CSV file"):
        read(tmp_path / "bytes.csv")


# Numbers.


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e12", "-1e12", "8k", "8 x 2", "1e999"])
def test_a_cell_that_is_no_number_skips_the_row(tmp_path: Path, text: str) -> None:
    found = row(tmp_path, seq_len=text)
    assert found.job is None
    assert found.skipped == f"seq_len is '{text}', not a number that a run can have"


@given(st.text(max_size=8))
@settings(max_examples=200)
def test_any_text_is_a_number_of_reason_or_none(text: str) -> None:
    try:
        value = number({"a": text}, "a")
    except RowSkipped:
        return
    assert (value is None) == (text == "")
    assert value is None or abs(value) <= 1e9


def test_numbers_as_people_write_them() -> None:
    cells = {"comma": "32,000", "point": "8.0", "blank": "", "exponent": "1e3"}
    assert number(cells, "comma") == 32000
    assert whole(cells, "point") == 8
    assert (number(cells, "blank"), number(cells, "absent")) == (None, None)
    assert (whole(cells, "blank"), whole(cells, "absent"), whole(cells, "exponent")) == (0, 0, 1000)


@pytest.mark.parametrize("name", ["seq_len", "hidden", "heads", "layers"])
@pytest.mark.parametrize("cell", ["", "0"])
def test_what_cannot_be_filled_skips_the_row(tmp_path: Path, name: str, cell: str) -> None:
    found = row(tmp_path, model_name="own", **{name: cell})
    assert (found.job, found.skipped) == (None, f"{name} is blank")


@pytest.mark.parametrize(
    ("cells", "layers", "hidden", "heads"),
    [
        # GPT-3: 96 layers, 12288 wide; heads are 128 wide.
        ({"model_name": "GPT", "params_b": 175, "hidden": "", "heads": ""}, 96, 12288, 96),
        ({"model_name": "GPT 175B", "layers": "", "heads": "", "hidden": 12288}, 96, 12288, 96),
        ({"model_name": "GPT 175B", "layers": "", "heads": "", "hidden": ""}, 96, 12288, 96),
        # Its 12 stages have whole layers.
        ({"model_name": "GPT 183B", "layers": "", "heads": "", "hidden": 14400, "pp": 12,
          "num_gpus": 96}, 72, 14400, 120),
        ({"model_name": "Llama 3.1 70B", "layers": "", "heads": "", "hidden": ""}, 80, 8192, 64),
        ({"model_name": "llama 8.1B of ours", "layers": "", "heads": "", "hidden": ""},
         32, 4096, 32),
    ],
)  # fmt: skip
def test_blank_widths_come_from_the_name_or_the_parameters(
    tmp_path: Path, cells: dict[str, object], layers: int, hidden: int, heads: int
) -> None:
    base = {"layers": 96, "params_b": ""} | cells
    blank = dict.fromkeys(("ffn_hidden", "kv_heads"), "")
    file = tmp_path / "a.csv"
    found = read(write(file, base | blank, base=THROUGHPUT | {"params_b": ""}))[1][0]
    assert found.job, found.skipped
    shape = found.job.shape
    assert (shape.layers, shape.hidden, shape.heads) == (layers, hidden, heads)
    assert any("number of parameters" in a or "that name" in a for a in found.assumed)


def test_a_name_with_two_sizes_is_not_guessed_at(tmp_path: Path) -> None:
    found = row(tmp_path, model_name="LLaMA 65B/70B", hidden="", heads="", layers="")
    assert "is blank" in found.skipped


def test_a_skipped_row_does_not_skip_its_neighbours(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {}, {"gpu": "Abacus"}, {})
    found = read(file)[1]
    assert [r.number for r in found] == [0, 1, 2]
    assert [r.skipped for r in found] == ["", "the catalog has no accelerator 'Abacus'", ""]


def test_speed_for_time(tmp_path: Path) -> None:
    found = row(tmp_path, step_time_s="", tokens_per_s_per_gpu=64 * 2048 / 8 / 4)
    assert found.step_s == pytest.approx(4)
    both = row(tmp_path, step_time_s="3", tokens_per_s_per_gpu=1)
    assert both.step_s == 3
    assert row(tmp_path, step_time_s="").step_s is None


# Accelerators.


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100 SXM5"),
        ("H100-80GB", "H100 SXM5"),
        ("H100 PCIe", "H100 PCIe"),
        ("H100-96GB-HBM2e(500W)", "H100 SXM5"),
        ("H100/H200", "H100 SXM5"),
        ("h100", "H100 SXM5"),
        ("A100", "A100 SXM4 80GB"),  # the larger where the row does not say
        ("A100-40GB", "A100 SXM4 40GB"),
        ("A100_80GB", "A100 SXM4 80GB"),
        ("V100", "V100 SXM2 32GB"),
        ("GB200", "GB200 NVL72"),
        ("B200", "B200 SXM"),
        ("MI300X", "MI300X"),
        ("RTX4090", "RTX 4090"),
        ("TPUv5p", "TPU v5p"),
    ],
)
def test_names_of_accelerators(written: str, name: str) -> None:
    assert accelerator_named(written) == name


@pytest.mark.parametrize("written", ["Abacus", "", "H", "NVIDIA"])
def test_an_unknown_accelerator(written: str) -> None:
    with pytest.raises(RowSkipped, match=f"the catalog has no accelerator '{written}'"):
        accelerator_named(written)


def test_the_name_may_give_memory_and_a_power_cap() -> None:
    usual, odd = machine_of({"gpu": "H100"}, 8), machine_of({"gpu": "H100-96GB-HBM2e(500W)"}, 8)
    assert usual.memory_bytes == 80 * GIB
    assert usual.tdp_w == 700
    assert odd.memory_bytes == 96 * GIB
    assert odd.tdp_w == 500
    assert odd.memory_bytes_per_s == pytest.approx(96 * 25e9)
    assert odd.memory_bytes_per_s < usual.memory_bytes_per_s
    assert machine_of({"gpu": "H100-80GB"}, 8).tdp_w == 700  # 80GB is no cap
    given_ = machine_of({"gpu": "H100-80GB", "gpu_mem_gib": "64"}, 8)
    assert given_.memory_bytes == 64 * GIB


def test_nodes_and_their_network() -> None:
    cells = {"gpu": "H100", "gpus_per_node": "8", "inter_node_gbps_per_gpu": "100"}
    slow, usual = machine_of(cells, 32), machine_of({"gpu": "H100"}, 32)
    assert (slow.per_node, slow.nodes, slow.accelerators) == (8, 4, 32)
    assert slow.tiers[-1].bytes_per_s == pytest.approx(usual.tiers[-1].bytes_per_s / 4)
    assert machine_of(cells, 4).per_node == 4  # a part of a node
    assert machine_of(cells, 12).nodes == 2  # and one that is half full
    assert machine_of({"gpu": "GB200", "gpus_per_node": "4"}, 64).per_node == 4


# Words.


@pytest.mark.parametrize(
    ("written", "precision"),
    [
        ("bf16", "bf16"),
        ("BF16", "bf16"),
        ("bf16-amp", "bf16"),
        ("bf16 with fp32 master", "bf16"),
        ("fp16-mixed", "fp16"),
        ("fp32", "fp32"),
        ("FP8", "fp8"),
        ("FP8(per-tensor current scaling)", "fp8"),
        ("FP8(rowwise)", "fp8-rowwise"),
        ("FP8-MX", "mxfp8"),
        ("MXFP8", "mxfp8"),
        ("FP8(fine-grained/MX)", "mxfp8"),
        ("NVFP4", "fp4"),
        ("MXFP4", "fp4"),
    ],
)
def test_words_for_precision(written: str, precision: str) -> None:
    assumed: list[str] = []
    assert precision_of(written, assumed) == precision
    assert assumed == []


def test_blank_precision_is_said() -> None:
    assumed: list[str] = []
    assert precision_of("", assumed) == "bf16"
    assert assumed == ["precision bf16"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("none", "none"),
        ("full", "full"),
        ("Full", "full"),
        ("selective", "selective"),
        ("selective(op)", "selective"),
        ("sel", "selective"),
    ],
)
def test_words_for_recompute(tmp_path: Path, written: str, found: str) -> None:
    assert layout(tmp_path, recompute=written).recompute == found


@pytest.mark.parametrize(
    ("written", "ways"),  # replicate, shard, zero
    [
        ("zero1", (1, 8, 1)),
        ("dist-opt(zero1)", (1, 8, 1)),
        ("fsdp-grad-op(zero2)", (1, 8, 2)),
        ("ZeRO-3", (1, 8, 3)),
        ("fsdp", (1, 8, 3)),
        ("megatron-fsdp", (1, 8, 3)),
        ("none(zero0)", (8, 1, 0)),
        ("none", (8, 1, 0)),
        ("ddp", (8, 1, 0)),
        ("FULL_SHARD", (1, 8, 3)),
        ("zero 3", (1, 8, 3)),
        ("dist-opt", (1, 8, 1)),
        ("fsdp-full(zero3) over 4 GPUs, replicate 2 (HSDP)", (2, 4, 3)),
        ("fsdp-full(zero3) over 8 GPUs, replicate 1 (HSDP)", (1, 8, 3)),
        ("fsdp-full(zero3) over 4 GPUs, replicate 3 (HSDP)", (1, 8, 3)),  # 3 does not divide 8
    ],
)
def test_words_for_sharding(tmp_path: Path, written: str, ways: tuple[int, int, int]) -> None:
    found = row(tmp_path, sharding=written)
    assert found.job
    lay = found.job.layout
    assert (lay.replicate, lay.shard, lay.zero) == ways
    assert found.assumed == ()


@pytest.mark.parametrize(
    ("framework", "zero"),
    [
        ("NeMo 2", 1),
        ("Megatron-Bridge/MCore", 1),
        ("Megatron-LM 0.14", 1),
        ("Megatron-DeepSpeed", 0),
        ("Composer/FSDP1", 3),
        ("torchtitan", 3),
        ("lit-gpt FSDP", 3),
        ("MaxText/JAX", 3),
    ],
)
def test_a_blank_sharding_is_the_frameworks_own_and_said(
    tmp_path: Path, framework: str, zero: int
) -> None:
    found = row(tmp_path, sharding="", framework=framework)
    assert found.job
    lay, name = found.job.layout, found.job.software.name
    assert (lay.shard, lay.zero) == ((8, zero) if zero else (1, 0))
    assert f"ZeRO-{zero} (usual for {name})" in found.assumed
    assert SHARDED[name] == zero


@pytest.mark.parametrize("framework", ["in-house", "", "torchtitan", "MaxText"])
def test_with_a_pipeline_weights_are_not_gathered_unless_the_row_says_so(
    tmp_path: Path, framework: str
) -> None:
    piped = row(tmp_path, sharding="", framework=framework, pp=2)
    assert piped.job
    assert piped.job.layout.zero == 1
    said = row(tmp_path, sharding="zero_stage=3", framework=framework, pp=2)
    assert said.job
    assert said.job.layout.zero == 3


def test_a_program_nobody_described_is_like_megatron_where_it_splits_the_model(
    tmp_path: Path,
) -> None:
    split, plain = (row(tmp_path, framework="in-house", tp=tp) for tp in (2, 1))
    assert split.job
    assert plain.job
    assert split.job.software.fused
    assert not plain.job.software.fused


# Frameworks.


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("NeMo 2", "nemo"),
        ("Megatron-Bridge/MCore", "nemo"),
        ("Megatron-LM", "megatron"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("MaxText/JAX", "xla"),
        ("torchtitan", "torchtitan"),
        ("Composer/FSDP1", "composer"),
        ("lit-gpt FSDP", "litgpt"),
        ("torchtune", "torchtune"),
        ("DeepSpeed", "deepspeed"),
        ("HF transformers", "deepspeed"),
        ("penstock 0.1", "penstock"),
        ("nobody knows", "fsdp"),
        ("", "fsdp"),
    ],
)
def test_names_of_frameworks(framework: str, name: str) -> None:
    assert software_of(framework, "").name == name


def test_penstock_is_the_software_that_plans_a_run() -> None:
    assert software_of("penstock", "") is PENSTOCK
    assert software_of("penstock", "tinyllama").fused is False  # the shape, not the code


@pytest.mark.parametrize(
    ("framework", "notes", "trait", "value"),
    [
        ("torchtitan", "with compile", "fused", True),
        ("torchtitan", "no compile", "fused", False),
        ("lit-gpt", "tinyllama code", "fused", True),
        ("hugging face", "fused kernels", "fused", True),
        ("torchtitan", "async tp", "overlap_tensor", True),
        ("torchtitan", "asynctp", "overlap_tensor", True),
        ("NeMo", "vanilla tp", "overlap_tensor", False),
        ("NeMo", "a2a overlap", "overlap_experts", True),
        ("NeMo", "dispatcher a2a", "dedupes", False),
        ("NeMo", "tokendrop", "dropless", False),
        ("NeMo", "with token drop", "dropless", False),
    ],
)
def test_notes_win_over_the_framework(framework: str, notes: str, trait: str, value: bool) -> None:
    plain, noted = software_of(framework, ""), software_of(framework, notes)
    assert getattr(noted, trait) is value
    assert replace(noted, **{trait: getattr(plain, trait)}) == plain  # and nothing else changes


def test_megatron_overlaps_when_it_is_narrow(tmp_path: Path) -> None:
    for precision, overlaps in (("bf16", False), ("fp16", False), ("fp8", True), ("NVFP4", True)):
        found = job(tmp_path, framework="Megatron-LM", precision=precision)
        assert found.software.overlap_tensor is overlaps
    assert not job(tmp_path, framework="torchtitan", precision="fp8").software.overlap_tensor


def test_all_16_bit(tmp_path: Path) -> None:
    for cells in ({"precision": "bf16-true"}, {"notes": "pure bf16"}):
        soft = job(tmp_path, **cells).software
        assert (soft.weight_bytes, soft.grad_bytes, soft.optimizer_bytes) == (2, 2, 4)
    assert job(tmp_path).software.weight_bytes == 4


def test_other_words_of_a_row(tmp_path: Path) -> None:
    assert job(tmp_path, kind="LoRA").adapter == Adapter()
    assert job(tmp_path, notes="balanced routing", **MOE).imbalance == 1.0
    assert job(tmp_path, **MOE).imbalance is None
    assert not layout(tmp_path, notes="no sequence parallel").sequence_parallel
    assert not layout(tmp_path, framework="Megatron-DeepSpeed").sequence_parallel
    assert layout(tmp_path).sequence_parallel


# Layouts.


def test_ways(tmp_path: Path) -> None:
    found = layout(tmp_path, num_gpus=64, tp=2, pp=4, cp=2, ep=2, etp=2, interleave="2", **MOE)
    assert (found.tensor, found.pipeline, found.context, found.shard) == (2, 4, 2, 4)
    assert (found.expert, found.expert_tensor, found.interleave) == (2, 2, 2)
    assert found.ranks == 64
    assert layout(tmp_path, ep=4).expert == 1  # a dense model has none to spread


def test_accelerators_from_the_data_ranks(tmp_path: Path) -> None:
    assert layout(tmp_path, num_gpus="", dp=4, tp=2).ranks == 8
    assert row(tmp_path, num_gpus="").skipped == "neither num_gpus nor dp is given"
    assert row(tmp_path, tp=3).skipped == "tp × pp × cp = 3 does not divide 8 accelerators"


def test_data_ranks_that_disagree_are_said(tmp_path: Path) -> None:
    found = row(tmp_path, dp=4)
    assert found.job
    assert found.job.data_ways == 8
    assert found.assumed == ("dp 8 (the row says 4)",)
    assert row(tmp_path, dp=8).assumed == ()


@pytest.mark.parametrize(
    ("interleave", "pieces"), [("", 1), ("1", 1), ("4", 4), ("layers/vstage=2", 4), ("odd", 1)]
)
def test_pieces_of_a_stage(tmp_path: Path, interleave: str, pieces: int) -> None:
    """16 layers over two stages; pieces of two layers are four."""
    assert layout(tmp_path, pp=2, interleave=interleave).interleave == pieces
    assert layout(tmp_path, pp=1, interleave=interleave).interleave == 1


def test_a_blank_microbatch_is_about_8192_tokens_and_said(tmp_path: Path) -> None:
    found = row(tmp_path, microbatch="")
    assert found.job
    assert found.job.layout.microbatch == 4
    assert found.assumed == ("microbatch 4",)
    assert layout(tmp_path, microbatch="", global_batch_seqs=16).microbatch == 2  # all there is
    assert layout(tmp_path, microbatch="", seq_len=16384).microbatch == 1
    assert layout(tmp_path, microbatch="", global_batch_seqs="").microbatch == 1


def test_a_blank_batch_is_one_microbatch_of_every_rank(tmp_path: Path) -> None:
    assert job(tmp_path, global_batch_seqs="", microbatch=2).batch == 16


@pytest.mark.parametrize(
    ("layers", "microbatch", "kind"),
    [
        (16, 4, "none"),  # 52 GiB of 79
        (48, 4, "none"),  # 152 GiB: too much, but not surely
        (16, 14, "selective"),  # 176 GiB, and 73 with selective recompute
        (48, 6, "full"),  # 225 GiB, 86 selective, 21 full
        (48, 64, "full"),  # nothing fits: the most
    ],
)
def test_a_blank_recompute_is_none_unless_it_could_not_have_fit(
    tmp_path: Path, layers: int, microbatch: int, kind: str
) -> None:
    found = row(
        tmp_path, recompute="", layers=layers, microbatch=microbatch, vocab=1000, seq_len=8192,
        global_batch_seqs=8 * microbatch,
    )  # fmt: skip
    assert found.job
    assert (found.job.layout.recompute, found.assumed) == (kind, (f"recompute {kind}",))


def test_a_row_that_says_none_is_believed(tmp_path: Path) -> None:
    found = row(tmp_path, recompute="none", microbatch=64, seq_len=8192)
    assert found.job
    assert (found.job.layout.recompute, found.assumed) == ("none", ())


# Shapes.


def test_blank_widths_are_filled_and_said(tmp_path: Path) -> None:
    found = row(tmp_path, ffn_hidden="", vocab="", kv_heads="")
    assert found.job
    shape = found.job.shape
    assert (shape.ffn, shape.vocab, shape.kv_heads) == (5376, 32000, 32)  # 8/3 × 2048, in 256s
    assert found.assumed == ("ffn_hidden 5376", "vocab 32000")


@pytest.mark.parametrize("name", ["GPT-3 175B", "MPT-7b", "nemotron-4", "OPT-13b", "bloom"])
def test_older_families_have_two_matrices(tmp_path: Path, name: str) -> None:
    shape = job(tmp_path, model_name=name, ffn_hidden="", heads=16).shape
    assert not shape.gated
    assert shape.ffn == 4 * 2048


def test_the_number_of_parameters_tells_the_block(tmp_path: Path) -> None:
    base = job(tmp_path, heads=16).shape
    for gated in (True, False):
        for tied in (True, False):
            size = replace(base, gated=gated, tied=tied).params() / 1e9
            found = job(tmp_path, heads=16, params_b=f"{size:.4f}").shape
            assert (found.gated, found.tied) == (gated, tied)
    for far in (0.1, 99):  # nothing is near: the row's widths stand
        assert job(tmp_path, heads=16, params_b=far).shape == base


def test_experts(tmp_path: Path) -> None:
    shape = job(tmp_path, **MOE).shape
    assert (shape.experts, shape.experts_active, shape.expert_ffn) == (8, 2, 4096)
    wide = job(tmp_path, experts=8, topk="", moe_ffn_hidden="").shape
    assert (wide.experts_active, wide.expert_ffn) == (2, 8192)
    assert job(tmp_path, experts="", topk=2, moe_ffn_hidden=64).shape.expert_ffn == 0


def cells_of(name: str, **changed: object) -> dict[str, object]:
    shape = preset(name)
    return {
        "model_name": "a twin",
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_hidden": shape.ffn,
        "vocab": shape.vocab,
        "experts": shape.experts or "",
        "topk": shape.experts_active or "",
        "moe_ffn_hidden": shape.expert_ffn or "",
    } | changed


@pytest.mark.parametrize(
    "name", ["llama-70b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"]
)
def test_a_row_with_the_widths_of_a_preset_is_that_model(tmp_path: Path, name: str) -> None:
    found, known = job(tmp_path, **cells_of(name)).shape, preset(name)
    assert found.params() == known.params()
    assert found.params(active=True) == known.params(active=True)
    assert (found.head_width, found.qk_norm) == (known.head_width, known.qk_norm)
    assert found.flops_per_token(4096) == known.flops_per_token(4096)


def test_other_widths_are_another_model(tmp_path: Path) -> None:
    for change in ({"hidden": 2048}, {"moe_ffn_hidden": 64}, {"experts": 64}):
        found = job(tmp_path, **cells_of("deepseek-v3", **change)).shape
        assert (found.kv_rank, found.shared_experts) == (0, 0)
    dense = job(tmp_path, **cells_of("qwen3-8b", ffn_hidden=64)).shape
    assert not dense.qk_norm


def test_a_shortened_model_keeps_one_dense_layer(tmp_path: Path) -> None:
    assert preset("deepseek-v3").dense_layers == 3
    found = job(tmp_path, **cells_of("deepseek-v3", layers=8)).shape
    assert (found.layers, found.dense_layers, found.kv_rank) == (8, 1, 512)
    assert job(tmp_path, **cells_of("deepseek-v3")).shape.dense_layers == 3


@pytest.mark.parametrize("name", ["DeepSeek proxy", "Kimi K2"])
def test_a_family_that_is_known_by_name(tmp_path: Path, name: str) -> None:
    found = job(tmp_path, **cells_of("deepseek-v3", model_name=name, experts=384)).shape
    assert (found.experts, found.kv_rank, found.shared_experts) == (384, 512, 1)


# Any row.


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from(["", "1", "2", "3", "4", "8", "1e3", "x", "nan", "1e10"])
            for name in ("seq_len", "num_gpus", "tp", "pp", "cp", "dp", "ep", "microbatch",
                         "global_batch_seqs", "experts", "topk", "layers", "heads", "kv_heads",
                         "vocab", "hidden", "interleave", "gpus_per_node")
        }
        | {name: st.text(max_size=12) for name in ("gpu", "sharding", "precision", "notes",
                                                    "framework", "recompute", "model_name")},
    )
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_row_is_a_job_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, cells: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp()
    base = THROUGHPUT | dict.fromkeys(cells, "")
    file = path / "any.csv"
    write(file, {k: str(v).replace("\0", "") for k, v in cells.items()}, base=base)
    for found in read(file)[1]:
        assert (found.job is None) == bool(found.skipped)
        if found.job:
            assert found.job.layout.ranks == found.job.machine.tiers[-1].size or (
                found.job.layout.ranks <= found.job.machine.accelerators
            )
            assert memory.predict(found.job).peak_bytes > 0


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"sharding": "zero9"}, "stages 0 to 3"),
        ({"precision": "int8"}, "not one that is planned"),
        ({"experts": 8, "topk": 2, "ep": 3}, "does not divide 8 experts"),
        ({"pp": 8, "tp": 1, "num_gpus": 8, "layers": 4}, "more than 4 layers"),
        ({"microbatch": -1}, "not a number that a run can have"),
    ],
)
def test_what_cannot_be_is_skipped_with_its_reason(
    tmp_path: Path, cells: dict[str, object], why: str
) -> None:
    assert why in row(tmp_path, **cells).skipped


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("float16", "fp16"),
        ("tf32", "tf32"),
        ("float32", "fp32"),
        ("half", "fp16"),
        ("fp32+fp8", "fp8"),
    ],
)
def test_words_for_precision_of_other_programs(tmp_path: Path, words: str, read: str) -> None:
    found = row(tmp_path, precision=words)
    assert found.job
    assert found.job.precision == read


@pytest.mark.parametrize("words", ["0", "²", "many"])
def test_an_interleave_that_cannot_be_read_is_one_and_said(tmp_path: Path, words: str) -> None:
    found = row(tmp_path, pp=2, interleave=words)
    assert found.job
    assert found.job.layout.interleave == 1
    assert any(words in line for line in found.assumed)


def test_names_as_torch_prints_them_and_a_power_limit_without_brackets(tmp_path: Path) -> None:
    assert row(tmp_path, gpu="NVIDIA H100 80GB HBM3").job.machine.accelerator == "H100 SXM5"
    capped = row(tmp_path, gpu="H100 500W").job.machine
    assert (capped.accelerator, capped.tdp_w) == ("H100 SXM5", 500)


@pytest.mark.parametrize(
    ("gpu", "notes", "graphs", "hidden"),
    [
        ("GB200", "25.09 NeMo Container", False, False),
        ("GB200", "25.11 NeMo Container", True, False),
        ("GB300", "26.04.01 NeMo Container", True, False),
        ("B200", "26.04 NeMo Container", False, False),
        ("B200", "26.06 NeMo Container", True, True),
        ("GB300", "26.08 NeMo Container", True, True),
        ("H100", "26.08 NeMo Container", False, False),
        ("GB300", "no release", False, False),
    ],
)
def test_the_release_of_a_container_says_how_it_treats_experts(
    gpu: str, notes: str, graphs: bool, hidden: bool
) -> None:
    chip = machine_of({"gpu": gpu}, 8).fact
    found = moe_release(software_of("Megatron-Bridge", ""), notes.lower(), chip)
    assert (found.graphs, found.overlap_experts) == (graphs, hidden)
    other = software_of("torchtitan", "")
    assert moe_release(other, notes.lower(), chip) is other
